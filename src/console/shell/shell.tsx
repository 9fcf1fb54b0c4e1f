/** The frame around every page. On narrow screens a button opens the navigation. */

import { Link, Outlet } from '@tanstack/react-router';
import { Menu } from 'lucide-react';
import { useState } from 'react';
import { Dialog, Modal, ModalOverlay } from 'react-aria-components';
import { brandLogo, brandName } from '../ui/brand.ts';
import { Button } from '../ui/button.tsx';
import { AccountMenu, ThemeSwitch } from './account_menu.tsx';
import { Navigation } from './navigation.tsx';

export function Shell() {
  return (
    <>
      <a className="skip-link" href="#main">
        Skip to content
      </a>
      <div className="shell">
        <header className="sidebar">
          <Sidebar />
        </header>
        <Topbar />
        <main id="main" className="main" tabIndex={-1}>
          <Outlet />
        </main>
      </div>
    </>
  );
}

function Brand({ onFollow }: { onFollow?: () => void }) {
  return (
    <Link to="/" className="brand" onClick={onFollow}>
      {brandLogo === '' ? (
        <span className="brand-mark" aria-hidden />
      ) : (
        <img className="brand-logo" src={brandLogo} alt="" />
      )}
      {brandName}
    </Link>
  );
}

function Sidebar({ onFollow }: { onFollow?: () => void }) {
  return (
    <>
      <Brand onFollow={onFollow} />
      <Navigation onFollow={onFollow} />
      <div className="sidebar-foot stack-small">
        <ThemeSwitch />
        <AccountMenu />
      </div>
    </>
  );
}

function Topbar() {
  const [isOpen, setOpen] = useState(false);
  return (
    <header className="topbar">
      <Brand />
      <Button look="ghost" isIcon aria-label="Open navigation" onPress={() => setOpen(true)}>
        <Menu size={20} aria-hidden />
      </Button>
      <ModalOverlay className="overlay" isOpen={isOpen} onOpenChange={setOpen} isDismissable>
        <Modal className="drawer">
          <Dialog aria-label="Navigation" className="sidebar">
            <Sidebar onFollow={() => setOpen(false)} />
          </Dialog>
        </Modal>
      </ModalOverlay>
    </header>
  );
}
