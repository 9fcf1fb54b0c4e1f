-- Verification of apps. It applies to the description that an administrator read and ends when that changes, whichever statement
-- changes it. Owner: src/clients.

alter table clients
  -- When the app last lost its verification. Consent that users gave before does not spare them the consent page.
  add column unverified_at timestamptz;

-- What an administrator verifies, by the names of RFC 7591: everything that users see, or that decides who gets what. Members that
-- are unknown here count, too.
create function verified_description(client clients) returns jsonb language sql stable set search_path from current as $$
  select client.metadata - '{contacts,software_id,software_version}'::text[] || jsonb_build_object(
    'client_name', client.name, 'redirect_uris', client.redirect_uris, 'grant_types', client.grant_types,
    'scope', client.scopes, 'token_endpoint_auth_method', client.auth_method, 'require_pkce', client.require_pkce,
    'logo', client.logo)
$$;

-- A statement that sets verified_at itself, to a new time or to null, decides about the verification. Times of changes increase,
-- also in milliseconds, so that an administrator can name the version that they read.
create function check_verification() returns trigger language plpgsql set search_path from current as $$
declare
  old_description jsonb;
  new_description jsonb;
begin
  new.updated_at := greatest(new.updated_at, old.updated_at + interval '1 millisecond');
  if old.verified_at is null then
    return new;
  end if;
  if new.verified_at = old.verified_at then
    old_description := verified_description(old);
    new_description := verified_description(new);
    if old_description <> new_description then
      new.verified_at := null;
      insert into audit_entries (kind, client_id, details) values ('app.unverified', new.id, jsonb_build_object(
        'changed', array(
          select name from jsonb_object_keys(old_description || new_description) as name
          where old_description -> name is distinct from new_description -> name order by name)));
    end if;
  end if;
  if new.verified_at is null then
    new.unverified_at := clock_timestamp();
  end if;
  return new;
end $$;

create trigger client_verification before update on clients
  for each row execute function check_verification();

-- Without a list of columns: such a trigger ignores columns that another trigger changes.
drop trigger client_disabled_stops_subscriptions on clients;
create trigger client_disabled_stops_subscriptions after update on clients
  for each row when (
    (old.disabled_at is null, old.suspended_at is null, old.verified_at is null, old.may_subscribe)
    is distinct from (new.disabled_at is null, new.suspended_at is null, new.verified_at is null, new.may_subscribe))
  execute function client_of_subscriptions_changed();
