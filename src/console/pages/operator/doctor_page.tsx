/** What is wrong with the installation, as the node that responds sees it. */

import { useQuery } from '@tanstack/react-query';
import { doctorQuery } from '../../api/admin.ts';
import type { Operations } from '../../api/generated.ts';
import { Badge, type BadgeLook } from '../../ui/badge.tsx';
import { Button } from '../../ui/button.tsx';
import { Card, Page } from '../../ui/page.tsx';
import { Failure, Skeletons } from '../../ui/states.tsx';
import { Ago } from '../../ui/time.tsx';

type Report = Operations['GET /admin/doctor']['response'];
type Check = Report['checks'][number];

const looks: Readonly<Record<Check['state'], BadgeLook>> = {
  error: 'bad',
  warning: 'warn',
  notice: 'info',
  unknown: 'still',
  ok: 'good',
};
/** The worst first. */
const order = Object.keys(looks);

export function DoctorPage() {
  const { data, error, refetch, isFetching } = useQuery(doctorQuery);
  return (
    <Page
      title="Doctor"
      description="What is wrong with this installation, and what to do. The command nuncio doctor reports the same, and works when the server does not."
      actions={
        <Button isPending={isFetching} onPress={() => refetch()}>
          Examine again
        </Button>
      }
    >
      {error !== null && <Failure error={error} onRetry={refetch} />}
      {error === null && (data === undefined ? <Skeletons count={6} /> : <Examined report={data} />)}
    </Page>
  );
}

function Examined({ report }: { report: Report }) {
  const problems = report.checks
    .filter(({ state }) => state !== 'ok')
    .sort((a, b) => order.indexOf(a.state) - order.indexOf(b.state));
  const fine = report.checks.filter(({ state }) => state === 'ok');
  return (
    <>
      <p role="status" className="soft">
        Examined <Ago time={report.created_at} />. {summaryOf(report)}
      </p>
      {problems.length > 0 && <Checks title="To look at" checks={problems} />}
      <Checks title="Fine" checks={fine} />
    </>
  );
}

function summaryOf({ checks }: Report): string {
  const errors = checks.filter(({ state }) => state === 'error').length;
  const warnings = checks.filter(({ state }) => state === 'warning').length;
  if (errors + warnings === 0) return 'No problem was found.';
  const count = (number: number, noun: string) => `${number} ${noun}${number === 1 ? '' : 's'}`;
  return `${count(errors, 'error')} and ${count(warnings, 'warning')}.`;
}

function Checks({ title, checks }: { title: string; checks: readonly Check[] }) {
  return (
    <Card title={title} isFlush>
      <ul className="list-rows">
        {checks.map(({ name, state, summary, advice }) => (
          <li key={name} className="row-between check">
            <span>
              <span className="mono soft small">{name}</span>
              <br />
              {summary}
              {advice !== null && (
                <>
                  <br />
                  <span className="soft">{advice}</span>
                </>
              )}
            </span>
            <Badge look={looks[state]}>{state}</Badge>
          </li>
        ))}
      </ul>
    </Card>
  );
}
