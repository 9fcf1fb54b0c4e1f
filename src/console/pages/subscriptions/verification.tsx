/** How a receiver verifies deliveries: the secret or key, and sample code. */

import { useQuery } from '@tanstack/react-query';
import { Tab, TabList, TabPanel, Tabs } from 'react-aria-components';
import type { Subscription } from '../../api/generated.ts';
import { metaQuery } from '../../api/queries.ts';
import { issuer } from '../../session/sign_in.ts';
import { CodeBlock } from '../../ui/copy.tsx';
import { Card } from '../../ui/page.tsx';
import { Failure, Skeletons } from '../../ui/states.tsx';
import { librarySamples, type ServerHeaders } from './library_code.ts';
import { signatureShapes } from './signature_shapes.ts';
import { samplesFor } from './verification_code.ts';

export function Verification({ subscription }: { subscription: Subscription }) {
  const { data, error, refetch } = useQuery(metaQuery);
  if (error !== null) return <Failure error={error} onRetry={refetch} />;
  if (data === undefined) return <Skeletons />;
  const shape = signatureShapes.find(({ id }) => id === subscription.signature);
  const headers = data.headers as ServerHeaders;
  const libraries = librarySamples(subscription.signature, headers, `${issuer}/meta`);
  const samples = samplesFor(subscription.signature, {
    headers: { signature: headers.signature ?? 'Nuncio-Signature' },
    publicKey: data.public_keys[0]?.key ?? 'whpk_…',
  });
  return (
    <Card
      title="Verify deliveries"
      description={`${shape?.title ?? subscription.signature}: ${shape?.description ?? ''}`}
    >
      <Tabs>
        <TabList className="tab-list" aria-label="Language">
          {samples.map(({ language }) => (
            <Tab key={language} id={language} className="tab">
              {language}
            </Tab>
          ))}
        </TabList>
        {samples.map(({ language, code }) => (
          <TabPanel key={language} id={language} className="tab-panel">
            {libraries
              .filter((library) => library.language === language)
              .map((library) => (
                <CodeBlock
                  key={language}
                  label={`${language} code with the library`}
                  title="With the library"
                  code={library.code}
                />
              ))}
            <CodeBlock label={`${language} code`} title="Without a library" code={code} />
          </TabPanel>
        ))}
      </Tabs>
    </Card>
  );
}
