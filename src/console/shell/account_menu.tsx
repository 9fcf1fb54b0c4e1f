/** The account menu: the user, the theme, sign-out. */

import { useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { ChevronsUpDown, LogOut, Mail, Monitor, Moon, Sun, UserRound } from 'lucide-react';
import { useState } from 'react';
import {
  Button,
  Menu,
  MenuItem,
  MenuTrigger,
  Popover,
  ToggleButton,
  ToggleButtonGroup,
} from 'react-aria-components';
import { userQuery } from '../api/queries.ts';
import { signOut } from '../session/session.ts';
import { applyTheme, readTheme, type Theme } from '../ui/theme.ts';

const themes = [
  { id: 'system', title: 'System', icon: Monitor },
  { id: 'light', title: 'Light', icon: Sun },
  { id: 'dark', title: 'Dark', icon: Moon },
] as const;

export function ThemeSwitch() {
  const [theme, setTheme] = useState(readTheme);
  const choose = (next: Theme) => {
    applyTheme(next);
    setTheme(next);
  };
  return (
    <ToggleButtonGroup
      aria-label="Theme"
      className="segments"
      selectionMode="single"
      disallowEmptySelection
      selectedKeys={[theme]}
      onSelectionChange={(keys) => choose([...keys][0] as Theme)}
    >
      {themes.map(({ id, title, icon: Icon }) => (
        <ToggleButton key={id} id={id} className="segment" aria-label={title}>
          <Icon size={16} aria-hidden />
        </ToggleButton>
      ))}
    </ToggleButtonGroup>
  );
}

export function AccountMenu() {
  const { data } = useQuery(userQuery);
  const navigate = useNavigate();
  const email = data?.email ?? '';
  const shown = data?.name || email || 'Account';
  return (
    <MenuTrigger>
      <Button className="account-button">
        <span className="avatar" aria-hidden>
          {(shown.at(0) ?? '?').toUpperCase()}
        </span>
        <span className="account-text">
          <span className="truncate">{shown}</span>
          <span className="truncate soft small">{email}</span>
        </span>
        <ChevronsUpDown size={16} aria-hidden />
      </Button>
      <Popover className="popover" placement="top start">
        <Menu
          className="menu"
          onAction={(key) => {
            if (key === 'notices') void navigate({ to: '/notices' });
            if (key === 'sign-out') void signOut();
          }}
        >
          <MenuItem id="account" className="menu-item" href="/account" target="_blank" rel="noopener">
            <UserRound size={16} aria-hidden /> Your account
          </MenuItem>
          <MenuItem id="notices" className="menu-item">
            <Mail size={16} aria-hidden /> Mail notices
          </MenuItem>
          <MenuItem id="sign-out" className="menu-item">
            <LogOut size={16} aria-hidden /> Sign out
          </MenuItem>
        </Menu>
      </Popover>
    </MenuTrigger>
  );
}
