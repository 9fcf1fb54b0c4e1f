import { sql } from 'kysely';
import { type Bench, eventBody } from './support.ts';

/** Writes events of an account and their deliveries in bulk, as attempted, so that nothing is sent while they are read. */
export async function addAttemptedEvents({ db }: Bench, account: string, events: number): Promise<void> {
  await sql`
    with added as (
      insert into events (id, account_id, kind, body)
      select gen_random_uuid()::text, ${account}::uuid, 'push',
        replace(${JSON.stringify(eventBody('main'))}, 'heads/main', 'heads/' || number)
      from generate_series(1, ${events}::int) as number
      returning day, position
    ),
    numbered as materialized (
      select added.day, added.position, s.lane, l.next_sequence + row_number() over (order by added.position) - 1 as sequence
      from added cross join subscriptions s join lanes l on l.id = s.lane where s.account_id = ${account}::uuid
    ),
    written as (
      insert into deliveries (day, lane, sequence, event) select day, lane, sequence, position from numbered
    ),
    attempted as (
      update lane_progress p set cursor = (select max(sequence) from numbered) from (select distinct lane from numbered) as given
      where p.lane = given.lane
    )
    update lanes set next_sequence = (select max(sequence) + 1 from numbered)
    where id = (select distinct lane from numbered)`.execute(db);
}
