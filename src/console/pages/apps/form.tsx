/** The form to create or change an app. */

import { useQuery } from '@tanstack/react-query';
import { Plus, X } from 'lucide-react';
import { type ReactNode, useState } from 'react';
import { scopesQuery } from '../../api/apps.ts';
import { Button } from '../../ui/button.tsx';
import { DraftForm, type DraftPart, type FieldErrors } from '../../ui/draft_form.tsx';
import { Checkbox, type Choice, ChoiceField, TextField } from '../../ui/fields.tsx';
import { Card } from '../../ui/page.tsx';
import { Failure, Skeletons } from '../../ui/states.tsx';
import type { AppDraft } from './draft.ts';
import { pageUrlError, redirectUriError } from './redirect_check.ts';
import { applicationTypes, authMethods, grants, presets } from './words.ts';

interface AppFormProps {
  first: AppDraft;
  action: string;
  isNew?: boolean;
  /** Shown above the button, such as a warning. */
  warn?: (draft: AppDraft) => ReactNode;
  /** @throws ApiError */
  onSubmit: (draft: AppDraft) => Promise<void>;
  onCancel?: () => void;
}

type PartProps = DraftPart<AppDraft>;

export function AppForm({ first, action, isNew = false, warn, onSubmit, onCancel }: AppFormProps) {
  return (
    <DraftForm
      {...{ first, action, errorsOf, members, onSubmit, onCancel }}
      sayError={(message) => `The server says: ${message}.`}
    >
      {(part) => (
        <>
          <Identity {...part} isNew={isNew} />
          {part.draft.grants.includes('authorization_code') && <RedirectUris {...part} />}
          <Scopes {...part} />
          {isNew ? <AdvancedTechnical {...part} /> : <Technical {...part} />}
          {warn?.(part.draft)}
        </>
      )}
    </DraftForm>
  );
}

function Identity({ draft, errors, onChange, isNew }: PartProps & { isNew: boolean }) {
  const preset = presets.find(({ draft: { applicationType, grants: given, authMethod } }) => {
    const isSame = [...given].sort().join() === [...draft.grants].sort().join();
    return isSame && applicationType === draft.applicationType && authMethod === draft.authMethod;
  });
  return (
    <Card title="Basics" description="Shown to users when the app asks for access.">
      <div className="stack">
        <TextField
          label="Name"
          name="client_name"
          value={draft.name}
          onChange={(name) => onChange({ name })}
          maxLength={100}
          isRequired
          error={errors.name}
        />
        {isNew && (
          <ChoiceField
            label="What are you building?"
            value={preset?.id ?? ''}
            onChange={(id) => onChange(presets.find((each) => each.id === id)?.draft ?? {})}
            choices={presets}
          />
        )}
        <TextField
          label="Home page"
          name="client_uri"
          type="url"
          value={draft.clientUri}
          onChange={(clientUri) => onChange({ clientUri })}
          placeholder="https://app.example"
          error={errors.clientUri ?? pageUrlError(draft.clientUri)}
        />
        <details className="more">
          <summary>Privacy policy and terms</summary>
          <div className="stack">
            <PageField
              label="Privacy policy"
              name="policy_uri"
              field="policyUri"
              {...{ draft, errors, onChange }}
            />
            <PageField
              label="Terms of service"
              name="tos_uri"
              field="tosUri"
              {...{ draft, errors, onChange }}
            />
          </div>
        </details>
      </div>
    </Card>
  );
}

interface PageFieldProps extends PartProps {
  label: string;
  name: string;
  field: 'policyUri' | 'tosUri';
}

function PageField({ label, name, field, draft, errors, onChange }: PageFieldProps) {
  return (
    <TextField
      label={label}
      name={name}
      type="url"
      value={draft[field]}
      onChange={(value) => onChange({ [field]: value })}
      placeholder="https://"
      error={errors[field] ?? pageUrlError(draft[field])}
    />
  );
}

/** Maximum number of redirect URIs. */
const urisMax = 20;

function RedirectUris({ draft, errors, onChange }: PartProps) {
  const uris = draft.redirectUris;
  const put = (index: number, uri: string) =>
    onChange({ redirectUris: uris.map((each, place) => (place === index ? uri : each)) });
  return (
    <Card
      title="Redirect URIs"
      description="Where users return after they allow the app. A URI must match exactly; only on localhost may the port differ."
    >
      <div className="stack">
        {uris.map((uri, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: the index identifies the field
          <div key={index} className="field-with-button">
            <TextField
              label={uris.length === 1 ? 'Redirect URI' : `Redirect URI ${index + 1}`}
              name="redirect_uri"
              value={uri}
              onChange={(next) => put(index, next)}
              isMono
              inputMode="url"
              autoComplete="off"
              spellCheck="false"
              placeholder="https://app.example/callback"
              error={redirectError(uri, index, draft, errors)}
              good={uri.trim() === '' ? null : goodWords(uri)}
            />
            {uris.length > 1 && (
              <Button
                look="ghost"
                isIcon
                aria-label={`Remove redirect URI ${index + 1}`}
                onPress={() => onChange({ redirectUris: uris.filter((_, place) => place !== index) })}
              >
                <X size={16} aria-hidden />
              </Button>
            )}
          </div>
        ))}
        {uris.length < urisMax && (
          <div>
            <Button isSmall onPress={() => onChange({ redirectUris: [...uris, ''] })}>
              <Plus size={16} aria-hidden /> Add another
            </Button>
          </div>
        )}
      </div>
    </Card>
  );
}

function redirectError(
  uri: string,
  index: number,
  draft: AppDraft,
  errors: FieldErrors<AppDraft>,
): string | null {
  if (uri.trim() !== '') {
    if (draft.redirectUris.indexOf(uri) < index) return 'This URI is already in the list.';
    const error = redirectUriError(uri.trim(), draft.applicationType);
    if (error !== null) return error;
  }
  return index === 0 ? (errors.redirectUris ?? null) : null;
}

function goodWords(uri: string): string | null {
  return uri.startsWith('http:')
    ? 'Allowed, because it leads to the user’s own device. Any port works.'
    : null;
}

function Scopes({ draft, errors, onChange }: PartProps) {
  const { data, error, refetch } = useQuery(scopesQuery);
  return (
    <Card
      title="Scopes"
      description="The most the app can request. Users see what it requests when they connect it."
      actions={
        data === undefined ? undefined : (
          <Button isSmall onPress={() => onChange({ scopes: data.map(({ name }) => name) })}>
            Select all
          </Button>
        )
      }
    >
      {error !== null && <Failure error={error} onRetry={refetch} />}
      {data === undefined && error === null && <Skeletons />}
      {data !== undefined && (
        <CheckList
          label="The app can"
          choices={data.map(({ name, description }) => ({ id: name, title: description, description: name }))}
          value={draft.scopes}
          onChange={(scopes) => onChange({ scopes })}
          error={errors.scopes}
        />
      )}
    </Card>
  );
}

interface CheckListProps {
  label: string;
  choices: readonly Choice[];
  value: readonly string[];
  onChange: (ids: string[]) => void;
  error?: string | undefined;
}

function CheckList({ label, choices, value, onChange, error }: CheckListProps) {
  return (
    <fieldset className="field check-list">
      <legend className="field-label">{label}</legend>
      {error !== undefined && (
        <p className="field-error" role="alert" tabIndex={-1}>
          {error}
        </p>
      )}
      <div className="check-columns">
        {choices.map(({ id, title, description }) => (
          <Checkbox
            key={id}
            isSelected={value.includes(id)}
            onChange={(isOn) => onChange(isOn ? [...value, id] : value.filter((each) => each !== id))}
          >
            {title}
            <br />
            <span className="soft small">{description}</span>
          </Checkbox>
        ))}
      </div>
    </fieldset>
  );
}

const technicalFields = ['applicationType', 'grants', 'authMethod', 'jwksUri'] as const;

/** Folded, because the kind of app decides them. An error opens it. */
function AdvancedTechnical(part: PartProps) {
  const hasError = technicalFields.some((field) => part.errors[field] !== undefined);
  const [isOpen, setOpen] = useState(false);
  return (
    <details
      className="more"
      open={isOpen || hasError}
      onToggle={({ currentTarget }) => setOpen(currentTarget.open)}
    >
      <summary>Advanced: OAuth settings</summary>
      <Technical {...part} />
    </details>
  );
}

function Technical({ draft, errors, onChange }: PartProps) {
  const methods = authMethods.some(({ id }) => id === draft.authMethod)
    ? authMethods
    : [
        ...authMethods,
        { id: draft.authMethod, title: draft.authMethod, description: 'Configured through the API.' },
      ];
  return (
    <Card
      title="OAuth settings"
      description="OAuth libraries ask for these values. What you are building decides them; change them for special cases."
    >
      <div className="stack">
        <ChoiceField
          label="Application type"
          value={draft.applicationType}
          onChange={(applicationType) => onChange({ applicationType })}
          choices={applicationTypes}
          error={errors.applicationType}
        />
        <CheckList
          label="Grant types"
          choices={grants}
          value={draft.grants}
          onChange={(chosen) => onChange({ grants: chosen })}
          error={errors.grants}
        />
        <ChoiceField
          label="Client authentication"
          value={draft.authMethod}
          onChange={(authMethod) => onChange({ authMethod })}
          choices={methods}
          error={errors.authMethod}
        />
        {draft.authMethod === 'private_key_jwt' && (
          <TextField
            label="JWKS URL"
            name="jwks_uri"
            value={draft.jwksUri}
            onChange={(jwksUri) => onChange({ jwksUri })}
            placeholder="https://app.example/jwks.json"
            error={errors.jwksUri ?? pageUrlError(draft.jwksUri)}
          />
        )}
      </div>
    </Card>
  );
}

function errorsOf(draft: AppDraft): FieldErrors<AppDraft> {
  const errors: FieldErrors<AppDraft> = {};
  const uris = draft.redirectUris.map((uri) => uri.trim()).filter(Boolean);
  const usesCode = draft.grants.includes('authorization_code');
  if (draft.name.trim() === '') errors.name = 'Enter a name.';
  if (draft.grants.length === 0) errors.grants = 'Select at least one.';
  if (usesCode && uris.length === 0) errors.redirectUris = 'Enter at least one redirect URI.';
  if (usesCode && uris.some((uri) => redirectUriError(uri, draft.applicationType) !== null)) {
    errors.redirectUris = 'At least one redirect URI is not valid.';
  }
  if (draft.scopes.length === 0) errors.scopes = 'Select at least one.';
  if (draft.grants.includes('client_credentials') && draft.authMethod === 'none') {
    errors.authMethod = 'The client credentials grant needs client authentication.';
  }
  for (const field of ['clientUri', 'policyUri', 'tosUri', 'jwksUri'] as const) {
    const error = pageUrlError(draft[field]);
    if (error !== null) errors[field] = error;
  }
  return errors;
}

const members: readonly [member: string, field: keyof AppDraft][] = [
  ['client_name', 'name'],
  ['client_uri', 'clientUri'],
  ['policy_uri', 'policyUri'],
  ['tos_uri', 'tosUri'],
  ['redirect_uris', 'redirectUris'],
  ['application_type', 'applicationType'],
  ['grant_types', 'grants'],
  ['scope', 'scopes'],
  ['token_endpoint_auth_method', 'authMethod'],
  ['jwks_uri', 'jwksUri'],
  ['jwks', 'jwksUri'],
];
