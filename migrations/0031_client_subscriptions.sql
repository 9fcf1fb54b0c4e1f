-- A client's own subscriptions are few, also where it has thousands of its users'.
create index subscriptions_of_client_itself on subscriptions (client_id) where owner = 'client' and state <> 'ended';
