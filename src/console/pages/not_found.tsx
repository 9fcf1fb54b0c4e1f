/** The page for unknown paths. */

import { Compass } from 'lucide-react';
import { ButtonLink } from '../ui/button.tsx';
import { Page } from '../ui/page.tsx';
import { Empty } from '../ui/states.tsx';

export function NotFound() {
  return (
    <Page title="Page not found">
      <div className="card">
        <Empty
          icon={Compass}
          title="This page does not exist"
          action={
            <ButtonLink look="primary" to="/">
              Go to Apps
            </ButtonLink>
          }
        >
          Check the address. The page may have been deleted.
        </Empty>
      </div>
    </Page>
  );
}
