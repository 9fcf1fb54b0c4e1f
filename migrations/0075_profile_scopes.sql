-- The scopes `profile` and `email` give name and e-mail address. A client that may ask users for `openid` and
-- `read:profile` could ask for both already. Owner of the table: src/clients.

update clients
set scopes = scopes || array['profile', 'email'], updated_at = now()
where scopes @> array['openid', 'read:profile'] and not scopes && array['profile', 'email'];
