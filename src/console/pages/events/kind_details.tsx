/** An event kind: description, required scope, schema, example. */

import { Tab, TabList, TabPanel, Tabs } from 'react-aria-components';
import type { EventKind } from '../../api/generated.ts';
import { CodeBlock } from '../../ui/copy.tsx';

export function KindDetails({ kind, level = 3 }: { kind: EventKind; level?: 2 | 3 }) {
  const Heading = `h${level}` as const;
  return (
    <div className="stack-small">
      <Heading>
        <code>{kind.name}</code>
      </Heading>
      <p>{kind.description}</p>
      <p className="soft small">
        {kind.scope === null ? (
          'Available to every subscription.'
        ) : (
          <>
            Apps need the scope <code>{kind.scope}</code>.
          </>
        )}
      </p>
      <Tabs>
        <TabList className="tab-list" aria-label={`Shape of ${kind.name}`}>
          <Tab id="example" className="tab">
            Example
          </Tab>
          <Tab id="schema" className="tab">
            Schema
          </Tab>
        </TabList>
        <TabPanel id="example" className="tab-panel-small">
          <CodeBlock label={`Example of ${kind.name}`} title="Body" code={format(kind.example)} />
        </TabPanel>
        <TabPanel id="schema" className="tab-panel-small">
          <CodeBlock label={`Schema of ${kind.name}`} title="JSON Schema" code={format(kind.schema)} />
        </TabPanel>
      </Tabs>
    </div>
  );
}

function format(value: unknown): string {
  return JSON.stringify(value, null, 2);
}
