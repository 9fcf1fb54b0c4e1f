-- Requests counted in the running minute, over all nodes. Owner: src/http/rate_limit.ts.
-- Unlogged: after a crash of the database the count begins anew, and nothing else is lost.

create unlogged table rate_windows (
  -- `token:<jti>` or `address:<ip>`.
  key text not null,
  -- Minutes since the epoch.
  minute bigint not null,
  used bigint not null,
  primary key (key, minute)
);
