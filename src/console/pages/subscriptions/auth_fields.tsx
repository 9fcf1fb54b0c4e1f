/** Fields for how deliveries authenticate to the receiver. */

import { useQuery } from '@tanstack/react-query';
import type { SubscriberAuth } from '../../api/generated.ts';
import { metaQuery } from '../../api/queries.ts';
import { type Choice, SelectField, TextField } from '../../ui/fields.tsx';
import { type AuthDraft, describeAuth, fieldsOf, isIncomplete } from './auth_draft.ts';

interface AuthFieldsProps {
  draft: AuthDraft;
  /** What the subscription has now. */
  stored: SubscriberAuth | null;
  onChange: (draft: AuthDraft) => void;
  error: string | undefined;
  /** The server's messages by JSON pointer. */
  refused: ReadonlyMap<string, string>;
}

const types: readonly Choice[] = [
  { id: 'none', title: 'Signature only' },
  { id: 'oauth2', title: 'Access token (OAuth 2.0 client credentials)' },
  { id: 'basic', title: 'User name and password' },
  { id: 'header', title: 'Header, such as an API key' },
];
const certificateType: Choice = { id: 'mtls', title: 'Client certificate of this server' };

export function AuthFields({ draft, stored, onChange, error, refused }: AuthFieldsProps) {
  const { data: meta } = useQuery(metaQuery);
  const { choice, values } = draft;
  const choices = [
    ...(stored === null ? [] : [{ id: 'stored', title: `${describeAuth(stored)} (unchanged)` }]),
    ...types,
    ...(meta?.client_certificate == null ? [] : [certificateType]),
  ];
  return (
    <div className="stack-small">
      <SelectField
        label="Authentication"
        description="What each delivery carries besides its signature, for a gateway in front of your server."
        value={choice}
        onChange={(id) => onChange({ choice: id as AuthDraft['choice'], values })}
        choices={choices}
        error={refused.get('/auth/type') === undefined ? null : `It ${refused.get('/auth/type')}.`}
      />
      {fieldsOf(draft).map(({ member, label, isSecret = false, isOptional = false, placeholder = '' }) => {
        const message = refused.get(`/auth/${member}`);
        return (
          <TextField
            key={member}
            label={label}
            name={`auth_${member}`}
            type={isSecret ? 'password' : 'text'}
            // Browsers must not offer the user's own passwords.
            autoComplete={isSecret ? 'new-password' : 'off'}
            isRequired={!isOptional}
            isMono={!isSecret}
            placeholder={placeholder}
            value={values[member] ?? ''}
            onChange={(value) => onChange({ choice, values: { ...values, [member]: value } })}
            description={isSecret ? 'Encrypted, and never shown again.' : undefined}
            error={message === undefined ? null : `It ${message}.`}
          />
        );
      })}
      {error !== undefined && (refused.has('/auth') || isIncomplete(draft)) && (
        <p className="field-error" role="alert">
          {error}
        </p>
      )}
    </div>
  );
}
