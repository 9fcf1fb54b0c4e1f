-- Failed sign-ins, counted in windows. Owner: src/accounts/throttle.ts.

create table sign_in_failures (
  -- SHA-256 of what is counted: an address of mail, an address of the network, or both together.
  subject bytea primary key,
  failures integer not null,
  window_ends_at timestamptz not null
);

create index sign_in_failures_window on sign_in_failures (window_ends_at);
