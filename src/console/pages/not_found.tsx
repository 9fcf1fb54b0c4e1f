/** For an address where there is nothing. */

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
          Check the address. What it led to may have been deleted.
        </Empty>
      </div>
    </Page>
  );
}
