/** The form to create or change a subscription. */

import { Plus, X } from 'lucide-react';
import { Button } from '../../ui/button.tsx';
import { DraftForm, type DraftPart, type FieldErrors } from '../../ui/draft_form.tsx';
import { ChoiceField, SwitchField, TextField } from '../../ui/fields.tsx';
import { Card } from '../../ui/page.tsx';
import { isIncomplete } from './auth_draft.ts';
import { AuthFields } from './auth_fields.tsx';
import { emptyDraft, readSchedule, type StaticHeader, type SubscriptionDraft } from './draft.ts';
import { problemOf } from './filter/draft.ts';
import { FilterCard } from './filter/filter_card.tsx';
import { KindPicker } from './kind_picker.tsx';
import { formats, signatureShapes } from './signature_shapes.ts';
import { checkUrl } from './url_check.ts';
import { VersionField } from './version_field.tsx';

interface SubscriptionFormProps {
  first: SubscriptionDraft;
  action: string;
  /** @throws ApiError */
  onSubmit: (draft: SubscriptionDraft) => Promise<void>;
  onCancel?: () => void;
}

type PartProps = DraftPart<SubscriptionDraft>;

export function SubscriptionForm({ first, action, onSubmit, onCancel }: SubscriptionFormProps) {
  return (
    <DraftForm
      {...{ first, action, errorsOf, members, onSubmit, onCancel }}
      sayError={(message) => `It ${message}.`}
    >
      {(part, refused) => (
        <>
          <WhereAndWhat {...part} isNew={first === emptyDraft} />
          <FilterCard
            kinds={part.draft.kinds}
            draft={part.draft.filter}
            onChange={(filter) => part.onChange({ filter })}
            error={part.errors.filter}
            refused={refused}
          />
          <HowItIsSent {...part} refused={refused} />
        </>
      )}
    </DraftForm>
  );
}

function WhereAndWhat({ draft, errors, onChange, isNew }: PartProps & { isNew: boolean }) {
  const opinion = checkUrl(draft.url);
  return (
    <Card title="Endpoint">
      <div className="stack">
        {!draft.isPulled && (
          <TextField
            label="URL"
            type="url"
            name="url"
            isRequired
            value={draft.url}
            onChange={(url) => onChange({ url })}
            placeholder="https://app.example.com/webhooks"
            description={
              opinion.warning ??
              'Deliveries are sent here by POST. Respond with a 2xx status within 15 seconds.'
            }
            error={errors.url ?? opinion.error}
          />
        )}
        {isNew && (
          <SwitchField
            label="My app asks for the events"
            description="Nothing is sent, and no URL is needed: your app reads the events through the API, at its own pace."
            isSelected={draft.isPulled}
            onChange={(isPulled) => onChange({ isPulled })}
          />
        )}
        <TextField
          label="Description"
          name="description"
          value={draft.description}
          onChange={(description) => onChange({ description })}
          placeholder="What this subscription is for"
          error={errors.description}
        />
        <KindPicker
          value={draft.kinds}
          // What was wrong with the filter was about the old kinds.
          onChange={(kinds) => onChange({ kinds, filter: draft.filter })}
          error={errors.kinds ?? null}
        />
      </div>
    </Card>
  );
}

type SentProps = PartProps & { refused: ReadonlyMap<string, string> };

function HowItIsSent({ draft, errors, onChange, refused }: SentProps) {
  return (
    <Card title="Delivery">
      <div className="stack">
        <ChoiceField
          label="Signature"
          value={draft.signature}
          onChange={(signature) => onChange({ signature })}
          choices={signatureShapes}
          error={errors.signature}
        />
        <details className="more">
          <summary>Advanced settings</summary>
          <div className="stack">
            <ChoiceField
              label="Format"
              value={draft.format}
              onChange={(format) => onChange({ format })}
              choices={formats}
              error={errors.format}
            />
            <VersionField
              value={draft.version}
              onChange={(version) => onChange({ version })}
              error={errors.version}
            />
            {!draft.isPulled && <HowItIsPushed {...{ draft, errors, onChange, refused }} />}
          </div>
        </details>
      </div>
    </Card>
  );
}

function HowItIsPushed({ draft, errors, onChange, refused }: SentProps) {
  return (
    <>
      <SwitchField
        label="Ordered"
        description="Sends one delivery at a time. The next one waits until the one before has succeeded or failed."
        isSelected={draft.ordered}
        onChange={(ordered) => onChange({ ordered })}
      />
      <TextField
        label="Rate limit (deliveries per second)"
        name="rate_limit"
        inputMode="numeric"
        value={draft.rateLimit}
        onChange={(rateLimit) => onChange({ rateLimit })}
        placeholder="No limit"
        error={errors.rateLimit}
      />
      <TextField
        label="Retry schedule"
        name="retry_schedule"
        value={draft.retrySchedule}
        onChange={(retrySchedule) => onChange({ retrySchedule })}
        placeholder="5s, 30s, 2min, 10min, 30min, 1h"
        description="Pauses between attempts. Leave empty for the schedule of this server."
        error={errors.retrySchedule}
      />
      <AuthFields
        draft={draft.auth}
        stored={draft.storedAuth}
        onChange={(auth) => onChange({ auth })}
        error={errors.auth}
        refused={refused}
      />
      <Headers draft={draft} errors={errors} onChange={onChange} />
      <SwitchField
        label="Handshake"
        description="Before a new URL is saved, its server must echo a signed challenge."
        isSelected={draft.handshake}
        onChange={(handshake) => onChange({ handshake })}
      />
    </>
  );
}

/** Maximum number of headers of a subscription. */
const headersMax = 10;

function Headers({ draft: { headers }, errors, onChange }: PartProps) {
  const put = (index: number, part: Partial<StaticHeader>) =>
    onChange({ headers: headers.with(index, { ...(headers[index] as StaticHeader), ...part }) });
  return (
    <fieldset className="field kind-picker stack-small">
      <legend className="field-label">Custom headers</legend>
      <p className="field-description">
        Sent with every delivery, for example the API key of a gateway. Values are encrypted and never shown
        again.
      </p>
      {headers.map(({ name, value }, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: nothing else stays the same while the user types
        <div key={index} className="header-row">
          <TextField label="Name" value={name} onChange={(next) => put(index, { name: next })} isMono />
          <TextField label="Value" value={value} onChange={(next) => put(index, { value: next })} isMono />
          <Button
            look="ghost"
            isIcon
            aria-label={`Remove the header ${name}`}
            onPress={() => onChange({ headers: headers.toSpliced(index, 1) })}
          >
            <X size={16} aria-hidden />
          </Button>
        </div>
      ))}
      {errors.headers !== undefined && (
        <p className="field-error" role="alert">
          {errors.headers}
        </p>
      )}
      {headers.length < headersMax && (
        <div>
          <Button isSmall onPress={() => onChange({ headers: [...headers, { name: '', value: '' }] })}>
            <Plus size={14} aria-hidden /> Add header
          </Button>
        </div>
      )}
    </fieldset>
  );
}

function errorsOf(draft: SubscriptionDraft): FieldErrors<SubscriptionDraft> {
  const errors: FieldErrors<SubscriptionDraft> = {};
  const url = draft.url.trim() === '' ? 'Enter a URL.' : checkUrl(draft.url).error;
  if (url !== null && !draft.isPulled) errors.url = url;
  if (draft.kinds.length === 0) errors.kinds = 'Select at least one kind.';
  if (!/^\s*(?:[1-9]\d{0,4})?\s*$/.test(draft.rateLimit))
    errors.rateLimit = 'Enter a whole number from 1 to 10,000.';
  if (readSchedule(draft.retrySchedule) === undefined) {
    errors.retrySchedule = 'Enter pauses separated by commas, such as 5s, 2min, 1h.';
  }
  if (draft.filter.conditions.some((each) => problemOf(each) !== undefined)) {
    errors.filter = 'Complete the conditions.';
  }
  if (isIncomplete(draft.auth)) errors.auth = 'Complete the authentication.';
  return errors;
}

const members: readonly [member: string, field: keyof SubscriptionDraft][] = [
  ['url', 'url'],
  ['description', 'description'],
  ['kinds', 'kinds'],
  ['filter', 'filter'],
  ['signature', 'signature'],
  ['format', 'format'],
  ['version', 'version'],
  ['rate_limit', 'rateLimit'],
  ['retry_schedule', 'retrySchedule'],
  ['headers', 'headers'],
  ['auth', 'auth'],
  ['handshake', 'handshake'],
];
