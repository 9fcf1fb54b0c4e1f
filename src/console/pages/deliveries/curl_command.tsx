/** The curl command of an attempt. It says that its signature is masked, and offers to sign it afresh. */

import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import type { Attempt } from '../../api/generated.ts';
import { subscriptionQuery } from '../../api/queries.ts';
import { request } from '../../api/request.ts';
import { Button } from '../../ui/button.tsx';
import { CodeBlock } from '../../ui/copy.tsx';
import { formatMinute } from '../../ui/time.tsx';
import { useAction } from '../../ui/use_action.ts';
import { curlOf, isSignedBySecret, maskedHeaders, signAfresh } from './curl.ts';

interface CurlProps {
  attempt: Attempt & { request: NonNullable<Attempt['request']> };
  body: unknown;
  subscription: string;
}

interface Signed {
  headers: Record<string, string>;
  at: string;
}

export function CurlCommand({ attempt, body, subscription }: CurlProps) {
  const { headers } = attempt.request;
  const text = JSON.stringify(body);
  const [signed, setSigned] = useState<Signed | null>(null);
  const { isPending, run } = useAction();
  const { data } = useQuery(subscriptionQuery(subscription));
  const canSign = isSignedBySecret(headers) && data !== undefined && 'secret' in data._links;
  const sign = () =>
    run(async () => {
      const { secret } = await request('GET /subscriptions/{id}/secret', { path: { id: subscription } });
      setSigned({ headers: await signAfresh(headers, text, secret), at: new Date().toISOString() });
    });
  const others = maskedHeaders(headers);
  return (
    <div className="stack-small">
      <CodeBlock label="curl" code={curlOf(attempt, signed?.headers ?? headers, text)} />
      <div className="row-between">
        <p className="soft small">
          {signed === null
            ? 'The signature is masked (***): a receiver that verifies it refuses this command.'
            : `Signed on ${formatMinute(signed.at)}. Receivers usually accept a signature for 5 minutes.`}
          {signed === null && !canSign && ' Resend the delivery to get a signed request.'}
          {others.length > 0 && ` Replace *** in ${others.join(', ')}.`}
        </p>
        {canSign && (
          <Button isSmall isPending={isPending} onPress={sign}>
            {signed === null ? 'Sign with the secret' : 'Sign again'}
          </Button>
        )}
      </div>
    </div>
  );
}
