/** An event kind: description, required scope, schema, example. */

import { useState } from 'react';
import { Tab, TabList, TabPanel, Tabs } from 'react-aria-components';
import type { EventKind } from '../../api/generated.ts';
import { CodeBlock } from '../../ui/copy.tsx';
import { SelectField } from '../../ui/fields.tsx';

export function KindDetails({ kind, level = 3 }: { kind: EventKind; level?: 2 | 3 }) {
  const Heading = `h${level}` as const;
  const [name, setName] = useState<string | null>(null);
  const version = kind.versions.find((each) => each.version === name) ?? kind.versions[0];
  const { example, schema } = version ?? kind;
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
      {version !== undefined && (
        <SelectField
          label="Version"
          value={version.version}
          onChange={setName}
          choices={kind.versions.map(({ version: id, deprecation }, index) => ({
            id,
            title: index === 0 ? `${id} (newest)` : deprecation === null ? id : `${id} (deprecated)`,
          }))}
          description={endOf(version)}
        />
      )}
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
          <CodeBlock label={`Example of ${kind.name}`} title="Body" code={format(example)} />
        </TabPanel>
        <TabPanel id="schema" className="tab-panel-small">
          <CodeBlock label={`Schema of ${kind.name}`} title="JSON Schema" code={format(schema)} />
        </TabPanel>
      </Tabs>
    </div>
  );
}

function endOf({ deprecation, sunset }: EventKind['versions'][number]): string | undefined {
  if (deprecation === null) return undefined;
  return `Deprecated from ${deprecation}${sunset === null ? '.' : `, and may be gone from ${sunset}.`}`;
}

function format(value: unknown): string {
  return JSON.stringify(value, null, 2);
}
