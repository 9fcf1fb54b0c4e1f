/** The pages that the engine asks for, in one object for it. */

import type { EnginePages } from '../oauth/engine_options.ts';
import {
  renderCodeConfirmation,
  renderCodeInput,
  renderDeviceRefused,
  renderDeviceSuccess,
} from './device_pages.ts';
import { renderErrorPage, renderExpiredPage } from './error_page.ts';
import { renderLeavePage } from './leave_page.ts';
import { renderLoggedOut, renderLogout } from './logout_pages.ts';

export const enginePages: EnginePages = {
  error: renderErrorPage,
  expired: renderExpiredPage,
  codeInput: renderCodeInput,
  codeConfirmation: renderCodeConfirmation,
  deviceRefused: renderDeviceRefused,
  deviceSuccess: renderDeviceSuccess,
  logout: renderLogout,
  loggedOut: renderLoggedOut,
  leave: renderLeavePage,
};
