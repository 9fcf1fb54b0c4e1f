/** Current settings and signing keys. */

import { useQuery } from '@tanstack/react-query';
import { keysQuery, settingsQuery } from '../../api/admin.ts';
import { Badge } from '../../ui/badge.tsx';
import { Card, Page } from '../../ui/page.tsx';
import { Failure, Skeletons } from '../../ui/states.tsx';
import { Ago } from '../../ui/time.tsx';
import { describeSetting } from './setting_value.ts';

export function SettingsPage() {
  return (
    <Page
      title="Settings"
      description="Current settings. Change them in the environment and in nuncio.config.ts."
    >
      <Settings />
      <Keys />
    </Page>
  );
}

const sections = [
  ['environment', 'Environment'],
  ['platform', 'nuncio.config.ts'],
] as const;

function Settings() {
  const { data, error, refetch } = useQuery(settingsQuery);
  if (error !== null) return <Failure error={error} onRetry={refetch} />;
  if (data === undefined) return <Skeletons count={6} />;
  return sections.map(([section, title]) => (
    <Card key={section} title={title} isFlush>
      <dl className="list-rows settings">
        {data.settings
          .filter((setting) => setting.section === section)
          .map(({ name, value }) => (
            <div key={name} className="setting">
              <dt className="mono">{name}</dt>
              <dd className="mono soft">{describeSetting(name, value)}</dd>
            </div>
          ))}
      </dl>
    </Card>
  ));
}

function Keys() {
  const { data, error, refetch } = useQuery(keysQuery);
  if (error !== null) return <Failure error={error} onRetry={refetch} />;
  if (data === undefined) return <Skeletons />;
  return (
    <Card
      title="Keys"
      description="Run nuncio keys rotate to create new keys. Old keys stay until everything they signed has expired."
      isFlush
    >
      <ul className="list-rows">
        {data.signing_keys.map((key) => (
          <li key={key.kid} className="row-between">
            <span>
              <strong>{key.algorithm}</strong> <span className="mono soft">{key.kid}</span>
            </span>
            <span className="row soft small">
              <Ago time={key.created_at} />
              <Badge look={key.state === 'current' ? 'good' : 'still'}>{key.state}</Badge>
            </span>
          </li>
        ))}
        {data.delivery_keys.map((key) => (
          <li key={key.kid} className="row-between">
            <span>
              <strong>Ed25519 (deliveries)</strong> <span className="mono soft">{key.kid}</span>
            </span>
            <span className="soft small">
              <Ago time={key.created_at} />
            </span>
          </li>
        ))}
      </ul>
    </Card>
  );
}
