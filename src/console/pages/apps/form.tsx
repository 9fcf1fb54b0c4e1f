/** The form of an app, for a new one and for a change. */

import { useQuery } from '@tanstack/react-query';
import { Plus, X } from 'lucide-react';
import { type FormEvent, useState } from 'react';
import { scopesQuery } from '../../api/apps.ts';
import { ApiError, describeFailure } from '../../api/problem.ts';
import { Button } from '../../ui/button.tsx';
import { Checkbox, SelectField, TextField } from '../../ui/fields.tsx';
import { Card } from '../../ui/page.tsx';
import { Failure, Notice, Skeletons } from '../../ui/states.tsx';
import type { AppDraft } from './draft.ts';
import { redirectUriFault } from './redirect_check.ts';

const authMethods = [
  { id: 'client_secret_basic', title: 'Secret, in the Authorization header (an app with a server)' },
  { id: 'client_secret_post', title: 'Secret, in the body (an app with a server)' },
  { id: 'none', title: 'None: PKCE alone (installed apps, pages without a server)' },
];

const grantTypes = [
  { id: 'authorization_code', title: 'Authorization code', description: 'a user signs in and allows' },
  { id: 'refresh_token', title: 'Refresh token', description: 'goes on while the user is away' },
  {
    id: 'urn:ietf:params:oauth:grant-type:device_code',
    title: 'Device code',
    description: 'for devices without a browser',
  },
  { id: 'client_credentials', title: 'Client credentials', description: 'the app speaks for itself' },
];

type Faults = Partial<Record<keyof AppDraft, string>>;

interface AppFormProps {
  first: AppDraft;
  action: string;
  /** Said before it is saved. */
  notice?: string | null;
  /** Whether the way of authentication may be chosen: later it is a matter of the API. */
  isNew?: boolean;
  /** @throws ApiError */
  onSubmit: (draft: AppDraft) => Promise<void>;
  onCancel?: () => void;
}

export function AppForm({ first, action, notice = null, isNew = false, onSubmit, onCancel }: AppFormProps) {
  const [draft, setDraft] = useState(first);
  const [faults, setFaults] = useState<Faults>({});
  const [failure, setFailure] = useState<string | null>(null);
  const [isPending, setPending] = useState(false);
  const change = (part: Partial<AppDraft>) => {
    setDraft({ ...draft, ...part });
    setFaults(Object.fromEntries(Object.entries(faults).filter(([name]) => !(name in part))));
  };
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    const form = event.currentTarget;
    const found = faultsOf(draft);
    setFaults(found);
    setFailure(null);
    if (Object.keys(found).length > 0) return focusFirstFault(form);
    setPending(true);
    try {
      await onSubmit(draft);
    } catch (error) {
      const refused = error instanceof ApiError ? serverFaults(error) : {};
      setFaults(refused);
      if (Object.keys(refused).length === 0) setFailure(describeFailure(error));
      else focusFirstFault(form);
    } finally {
      setPending(false);
    }
  };
  return (
    <form className="stack-large" onSubmit={submit} noValidate>
      <Looks draft={draft} faults={faults} onChange={change} />
      <SignIn draft={draft} faults={faults} onChange={change} isNew={isNew} />
      <Scopes draft={draft} faults={faults} onChange={change} />
      {notice !== null && (
        <Notice look="warn">
          <p>{notice}</p>
        </Notice>
      )}
      {failure !== null && (
        <Notice look="bad" title="It was not saved" role="alert">
          <p>{failure}</p>
        </Notice>
      )}
      <div className="form-actions">
        {onCancel !== undefined && <Button onPress={onCancel}>Cancel</Button>}
        <Button look="primary" type="submit" isPending={isPending}>
          {action}
        </Button>
      </div>
    </form>
  );
}

interface PartProps {
  draft: AppDraft;
  faults: Faults;
  onChange: (part: Partial<AppDraft>) => void;
}

function Looks({ draft, faults, onChange }: PartProps) {
  return (
    <Card title="What users see" description="When the app asks for their permission.">
      <div className="stack">
        <TextField
          label="Name"
          name="client_name"
          isRequired
          value={draft.name}
          onChange={(name) => onChange({ name })}
          error={faults.name}
        />
        <div className="grid-2">
          <TextField
            label="Home page"
            type="url"
            name="client_uri"
            value={draft.homePage}
            onChange={(homePage) => onChange({ homePage })}
            placeholder="https://app.example.com"
            error={faults.homePage}
          />
          <TextField
            label="Logo"
            type="url"
            name="logo_uri"
            value={draft.logo}
            onChange={(logo) => onChange({ logo })}
            placeholder="https://app.example.com/logo.png"
            error={faults.logo}
          />
        </div>
      </div>
    </Card>
  );
}

function SignIn({ draft, faults, onChange, isNew }: PartProps & { isNew: boolean }) {
  const toggle = (id: string, isOn: boolean) =>
    onChange({
      grantTypes: isOn ? [...draft.grantTypes, id] : draft.grantTypes.filter((each) => each !== id),
    });
  return (
    <Card title="How it gets tokens">
      <div className="stack">
        <RedirectUris draft={draft} faults={faults} onChange={onChange} />
        <fieldset className="field kind-picker stack-small">
          <legend className="field-label">Grants</legend>
          {grantTypes.map(({ id, title, description }) => (
            <Checkbox
              key={id}
              isSelected={draft.grantTypes.includes(id)}
              isDisabled={id === 'client_credentials' && draft.authMethod === 'none'}
              onChange={(isOn) => toggle(id, isOn)}
            >
              {title} <span className="soft small">{description}</span>
            </Checkbox>
          ))}
          {faults.grantTypes !== undefined && (
            <p className="field-error" role="alert">
              {faults.grantTypes}
            </p>
          )}
        </fieldset>
        {isNew && (
          <SelectField
            label="How it proves who it is"
            value={draft.authMethod}
            onChange={(authMethod) => onChange({ authMethod })}
            choices={authMethods}
            error={faults.authMethod}
          />
        )}
      </div>
    </Card>
  );
}

function RedirectUris({ draft: { redirectUris }, faults, onChange }: PartProps) {
  const put = (index: number, uri: string) => onChange({ redirectUris: redirectUris.with(index, uri) });
  return (
    <div className="stack-small">
      {redirectUris.map((uri, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: they have nothing else that stays while one types
        <div key={index} className="redirect-row">
          <TextField
            label={redirectUris.length === 1 ? 'Redirect URI' : `Redirect URI ${index + 1}`}
            type="url"
            value={uri}
            onChange={(next) => put(index, next)}
            placeholder="https://app.example.com/callback"
            description={
              index === 0 ? 'Where users come back to. The server compares it letter by letter.' : undefined
            }
            error={redirectUriFault(uri) ?? (index === 0 ? faults.redirectUris : null)}
          />
          {redirectUris.length > 1 && (
            <Button
              look="ghost"
              isIcon
              aria-label={`Remove redirect URI ${index + 1}`}
              onPress={() => onChange({ redirectUris: redirectUris.toSpliced(index, 1) })}
            >
              <X size={16} aria-hidden />
            </Button>
          )}
        </div>
      ))}
      <div>
        <Button isSmall onPress={() => onChange({ redirectUris: [...redirectUris, ''] })}>
          <Plus size={14} aria-hidden /> Another redirect URI
        </Button>
      </div>
    </div>
  );
}

function Scopes({ draft, faults, onChange }: PartProps) {
  const { data, error, refetch } = useQuery(scopesQuery);
  if (error !== null) return <Failure error={error} onRetry={refetch} />;
  if (data === undefined) return <Skeletons />;
  const toggle = (name: string, isOn: boolean) =>
    onChange({ scopes: isOn ? [...draft.scopes, name] : draft.scopes.filter((each) => each !== name) });
  return (
    <Card
      title="What it may ask for"
      description="A user sees these words. Ask for no more than the app needs."
    >
      <fieldset className="field kind-picker stack-small">
        <legend className="visually-hidden">Scopes</legend>
        {Object.entries(data).map(([name, description]) => (
          <Checkbox
            key={name}
            isSelected={draft.scopes.includes(name)}
            onChange={(isOn) => toggle(name, isOn)}
          >
            <code>{name}</code> <span className="soft small">{description}</span>
          </Checkbox>
        ))}
        {faults.scopes !== undefined && (
          <p className="field-error" role="alert">
            {faults.scopes}
          </p>
        )}
      </fieldset>
    </Card>
  );
}

function faultsOf(draft: AppDraft): Faults {
  const faults: Faults = {};
  const uris = draft.redirectUris.filter((uri) => uri.trim() !== '');
  if (draft.name.trim() === '') faults.name = 'Give it a name.';
  if (draft.grantTypes.includes('authorization_code') && uris.length === 0) {
    faults.redirectUris = 'Say where users come back to.';
  }
  if (uris.some((uri) => redirectUriFault(uri) !== null)) faults.redirectUris = 'One of them cannot be used.';
  if (draft.grantTypes.length === 0) faults.grantTypes = 'Choose one at least.';
  if (draft.scopes.length === 0) faults.scopes = 'Choose one at least.';
  return faults;
}

const members: readonly [member: string, field: keyof AppDraft][] = [
  ['client_name', 'name'],
  ['client_uri', 'homePage'],
  ['logo_uri', 'logo'],
  ['redirect_uris', 'redirectUris'],
  ['grant_types', 'grantTypes'],
  ['token_endpoint_auth_method', 'authMethod'],
  ['scope', 'scopes'],
];

function serverFaults(error: ApiError): Faults {
  const faults: Faults = {};
  for (const [member, field] of members) {
    const message = error.faultAt(member);
    if (message !== undefined) faults[field] = message;
  }
  return faults;
}

function focusFirstFault(form: Element): void {
  requestAnimationFrame(() => form.querySelector<HTMLElement>('[aria-invalid="true"]')?.focus());
}
