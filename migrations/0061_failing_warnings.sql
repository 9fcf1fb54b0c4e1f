-- The last warning that was given before a subscription that fails is disabled. Owner: src/webhooks/subscriptions/failing.ts.

create table failing_warnings (
  lane bigint primary key references subscriptions (lane) on delete cascade,
  -- Of lane_progress when the warning was given: another row of failures is warned of anew.
  failing_since timestamptz not null,
  warning text not null check (warning in ('half', 'last')),
  given_at timestamptz not null default now(),
  -- Nothing is disabled earlier, nor without the last warning.
  disables_at timestamptz not null
);
