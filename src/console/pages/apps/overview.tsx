/** The app overview: values for OAuth libraries and sample code. */

import { Tab, TabList, TabPanel, Tabs } from 'react-aria-components';
import type { App } from '../../api/generated.ts';
import { issuer } from '../../session/sign_in.ts';
import { CodeBlock, CopyButton } from '../../ui/copy.tsx';
import { Card } from '../../ui/page.tsx';
import { Ago } from '../../ui/time.tsx';
import { samplesFor } from './sample_code.ts';
import { applicationTypes, authMethods, grants, titleOf, titleOfRole } from './words.ts';

export function Overview({ app }: { app: App }) {
  return (
    <div className="stack-large">
      <Card title="Details">
        <Facts app={app} />
      </Card>
      <Card title="Configuration" description="Libraries discover the endpoints from the issuer.">
        <div className="stack-small">
          <Copyable label="Client ID" value={app.client_id} />
          <Copyable label="Issuer" value={issuer} />
          {app.redirect_uris.map((uri) => (
            <Copyable key={uri} label="Redirect URI" value={uri} />
          ))}
        </div>
      </Card>
      <Code app={app} />
      <p className="soft">
        The{' '}
        <a href="/docs/" target="_blank" rel="noopener">
          API reference
        </a>{' '}
        describes every operation. To try one, sign in there and send a request as yourself.
      </p>
    </div>
  );
}

function Facts({ app }: { app: App }) {
  return (
    <dl className="facts">
      <div>
        <dt>Application type</dt>
        <dd>{titleOf(applicationTypes, app.application_type ?? 'web')}</dd>
      </div>
      <div>
        <dt>Client authentication</dt>
        <dd>{titleOf(authMethods, app.token_endpoint_auth_method)}</dd>
      </div>
      <div>
        <dt>Grant types</dt>
        <dd>{app.grant_types.map((grant) => titleOf(grants, grant)).join(', ')}</dd>
      </div>
      <div>
        <dt>Your role</dt>
        <dd>{titleOfRole(app.role)}</dd>
      </div>
      <div>
        <dt>Created</dt>
        <dd>
          <Ago time={app.created_at} />
        </dd>
      </div>
      <div>
        <dt>Home page</dt>
        <dd>
          {app.client_uri === null ? (
            <span className="soft">None</span>
          ) : (
            <a href={app.client_uri} target="_blank" rel="noopener noreferrer">
              {app.client_uri}
            </a>
          )}
        </dd>
      </div>
      <div className="fact-wide">
        <dt>Scopes</dt>
        <dd className="kind-tags">
          {app.scope
            .split(' ')
            .filter(Boolean)
            .map((scope) => (
              <span key={scope} className="kind-tag">
                {scope}
              </span>
            ))}
        </dd>
      </div>
    </dl>
  );
}

function Copyable({ label, value }: { label: string; value: string }) {
  return (
    <div>
      <p className="soft small">{label}</p>
      <div className="secret">
        <code>{value}</code>
        <CopyButton text={value} label={`Copy ${label} ${value}`} />
      </div>
    </div>
  );
}

function Code({ app }: { app: App }) {
  const samples = samplesFor(app, issuer);
  return (
    <Card
      title="Sample code"
      description="Contains the values of this app. Keep the secret in the environment, not in the code."
    >
      <Tabs>
        <TabList className="tab-list" aria-label="Library">
          {samples.map(({ title }) => (
            <Tab key={title} id={title} className="tab">
              {title}
            </Tab>
          ))}
        </TabList>
        {samples.map(({ title, install, code }) => (
          <TabPanel key={title} id={title} className="tab-panel">
            <CodeBlock label={`${title} code`} title={install} code={code} />
          </TabPanel>
        ))}
      </Tabs>
    </Card>
  );
}
