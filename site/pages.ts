/**
 * The pages of the site and their navigation. Every document of `docs/` is here once, with the description that search engines and
 * `llms.txt` show. The title is the document's first heading.
 */

export interface SitePage {
  /** Path of the document from the root of the repository. */
  file: string;
  /** Address without extension. */
  route: string;
  /** The name in the navigation. */
  name: string;
  description: string;
}

export interface SiteGroup {
  title: string;
  /** Whether the navigation shows the group folded. */
  isFolded?: boolean;
  pages: readonly SitePage[];
}

/** A page at the address of its document below `docs`. */
function page(document: string, name: string, description: string): SitePage {
  const route = document.replace(/README$/, 'index');
  return { file: `docs/${document}.md`, route, name, description };
}

const decisions: readonly [document: string, name: string][] = [
  ['oauth', 'Authorization server'],
  ['tokens', 'Tokens'],
  ['accounts', 'Accounts'],
  ['openid-providers', 'OpenID providers'],
  ['apps', 'Apps'],
  ['api', 'API'],
  ['events', 'Events'],
  ['fan-out', 'Fan-out'],
  ['subscriptions', 'Subscriptions'],
  ['delivery-log', 'Delivery log'],
  ['deliveries', 'Deliveries'],
  ['nodes', 'Nodes'],
  ['database', 'Database'],
  ['agents', 'Agents'],
  ['console', 'Console'],
  ['mail', 'Mail'],
  ['operations', 'Operation'],
  ['overload', 'Overload'],
  ['libraries', 'Libraries'],
  ['documentation', 'Documentation'],
];

export const groups: readonly SiteGroup[] = [
  {
    title: 'Start',
    pages: [
      page(
        'index',
        'Overview',
        'Nuncio opens your product to other people’s apps: OAuth 2.0, an API and signed webhooks in one database.',
      ),
      {
        file: 'README.md',
        route: 'start',
        name: 'Install and try',
        description:
          'Start a server in a checkout, run the demo, install the package, and what each part does.',
      },
      page(
        'what-it-is',
        'What it is, and when not to use it',
        'What Nuncio does, for whom, and when another product fits better.',
      ),
      page(
        'comparison',
        'Comparison',
        'Nuncio beside Ory Hydra, Keycloak, authentik, ZITADEL, Svix, Convoy, Hookdeck Outpost and Hook0, with what each does better.',
      ),
      page('not-yet', 'What is not there yet', 'Limits of Nuncio today, and what it does not do.'),
      page(
        'telemetry',
        'Telemetry: none',
        'Nuncio sends nothing about you to anyone. Every outgoing connection, and the setting that causes it.',
      ),
    ],
  },
  {
    title: 'Concepts',
    pages: [
      page(
        'concepts/grants',
        'Grants',
        'A grant is what one user allows one app. Tokens, subscriptions and deliveries depend on it and end with it.',
      ),
      page(
        'concepts/events-and-lanes',
        'Events and lanes',
        'How an event becomes deliveries, and how the queue of one subscription is independent of the others.',
      ),
      page(
        'concepts/at-least-once',
        'At least once',
        'What Nuncio promises about deliveries, what it does not, and what a subscriber does about duplicates and order.',
      ),
      page(
        'concepts/one-database',
        'One database',
        'Why grants, events and deliveries are in one PostgreSQL database, and what commits together.',
      ),
      page('glossary', 'Glossary', 'Terms of the documents and the code.'),
    ],
  },
  {
    title: 'Existing application',
    pages: [
      page(
        'existing-app',
        'Add Nuncio to your application',
        'Step by step: sign-in at your login page, an API with your data, events from your transactions.',
      ),
      page(
        'protect',
        'Protect your API',
        'Verify access tokens in your own server with nuncio/protect, and publish events over HTTP.',
      ),
      page(
        'publishing',
        'Publish by SQL',
        'Publish an event in a transaction of your application with select nuncio.publish(…).',
      ),
      page(
        'outbox',
        'Publish from another database',
        'Publish events from your own PostgreSQL or SQLite database with nuncio/outbox.',
      ),
    ],
  },
  {
    title: 'New product',
    pages: [
      page(
        'platform',
        'Declare the platform',
        'Collections, event kinds and the sections of nuncio.config.ts.',
      ),
      page(
        'api',
        'API behavior',
        'How collections behave over HTTP: paging, conditions, idempotency, errors and their codes.',
      ),
    ],
  },
  {
    title: 'App developer',
    pages: [
      page(
        'app-developers',
        'Build an app',
        'Register an app, connect a user, call the API and receive events: from the first request to the end of access.',
      ),
      page('clients', 'OAuth clients', 'Settings of OAuth and OpenID Connect libraries, by library.'),
    ],
  },
  {
    title: 'Subscriber',
    pages: [
      page(
        'subscribers',
        'Receive webhooks',
        'Verify deliveries, handle each one once, keep their order, catch up, and listen on a laptop.',
      ),
    ],
  },
  {
    title: 'Agent',
    pages: [
      page('agents', 'Connect AI agents', 'Tools, sign-in and events over the Model Context Protocol.'),
    ],
  },
  {
    title: 'Operator',
    pages: [
      page(
        'production',
        'From nothing to three nodes',
        'A walk through installation, TLS, failover, backup, restore and upgrade, with every command.',
      ),
      page(
        'operations',
        'Run a server',
        'Nodes, proxies, connections, doctor, health, metrics, traces and logs.',
      ),
      page(
        'deployment',
        'Deploy',
        'Container image, Compose, Helm chart, systemd, and inside your own process.',
      ),
      page(
        'management',
        'Manage apps and accounts',
        'Apps, members, accounts and administration over HTTP, and what each right is worth.',
      ),
      page(
        'monitoring',
        'Alerts',
        'Prometheus alerts, the Grafana dashboard, and what to do about each alert.',
      ),
      page(
        'backup',
        'Back up and restore',
        'Backups of the embedded and of an external database, and their restore.',
      ),
      page(
        'sizing',
        'Sizing',
        'How much processor, memory, disk and how many connections an installation needs.',
      ),
      page('failover', 'Fail over', 'Failover to a standby, and what a restored backup does not repeat.'),
      page('upgrading', 'Upgrade', 'What an upgrade does, version by version.'),
    ],
  },
  {
    title: 'Reference',
    pages: [
      page('settings', 'Settings', 'Every environment variable, its meaning and default.'),
      page('reference/commands', 'Commands', 'Every command of nuncio and its options.'),
      page(
        'reference/http',
        'HTTP operations',
        'Every operation of the API: who may call it, parameters, bodies, responses.',
      ),
      page(
        'reference/events',
        'Event kinds',
        'Kinds that the server publishes, and those of the example platform.',
      ),
      page('reference/metrics', 'Metrics', 'Every metric, its type, labels and meaning.'),
      page(
        'conformance',
        'Conformance: OAuth',
        'Requirements of OAuth 2.0 and OpenID Connect, with the test of each.',
      ),
      page(
        'conformance-webhooks',
        'Conformance: webhooks',
        'Requirements of webhooks, with the test of each.',
      ),
      page(
        'conformance-agents',
        'Conformance: agents',
        'Requirements of the Model Context Protocol, with the test of each.',
      ),
      page(
        'dependencies',
        'Dependencies',
        'Production dependencies: version, maintainers, and what happens if one stops.',
      ),
      {
        file: 'CHANGELOG.md',
        route: 'changelog',
        name: 'Changes',
        description: 'What changed, for people who upgrade.',
      },
      {
        file: 'SECURITY.md',
        route: 'security',
        name: 'Security',
        description: 'Reporting vulnerabilities, and the security of a deployment.',
      },
    ],
  },
  {
    title: 'Decisions',
    isFolded: true,
    pages: [
      page('decisions/README', 'Overview', 'Design decisions and their reasons, by subject.'),
      ...decisions.map(([document, name]) =>
        page(`decisions/${document}`, name, `Design decisions and their reasons: ${name.toLowerCase()}.`),
      ),
    ],
  },
  {
    title: 'Contribute',
    isFolded: true,
    pages: [
      {
        file: 'ARCHITECTURE.md',
        route: 'architecture',
        name: 'Architecture',
        description: 'The parts of the server, the journey of an event, and the rules of the code.',
      },
      {
        file: 'CONTRIBUTING.md',
        route: 'contributing',
        name: 'Contributing',
        description: 'Set up, run tests, debug, and recipes for changes.',
      },
      page('releasing', 'Releasing', 'The steps of a release.'),
    ],
  },
];

export const pages: readonly SitePage[] = groups.flatMap((group) => group.pages);
