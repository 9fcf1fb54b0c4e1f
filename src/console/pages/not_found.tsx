/** For an address where there is nothing. */

import { Compass } from 'lucide-react';
import { ButtonLink } from '../ui/button.tsx';
import { Page } from '../ui/page.tsx';
import { Empty } from '../ui/states.tsx';

export function NotFound() {
  return (
    <Page title="Nothing here">
      <div className="card">
        <Empty
          icon={Compass}
          title="There is no such page"
          action={
            <ButtonLink look="primary" to="/">
              Go to the start
            </ButtonLink>
          }
        >
          It may have been deleted, or the address has a mistake in it.
        </Empty>
      </div>
    </Page>
  );
}
