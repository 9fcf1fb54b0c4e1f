/** The pages that oidc-provider shows. */

import type { ProviderPages } from '../oauth/provider_options.ts';
import type { Brand } from './brand.ts';
import {
  renderCodeConfirmation,
  renderCodeInput,
  renderDeviceRefused,
  renderDeviceSuccess,
} from './device_pages.ts';
import { renderErrorPage, renderExpiredPage } from './error_page.ts';
import { renderLeavePage } from './leave_page.ts';
import { renderLoggedOut, renderLogout } from './logout_pages.ts';

export function createProviderPages(brand: Brand): ProviderPages {
  return {
    brandName: brand.name,
    hasBrandColor: brand.color !== null,
    error: (...given) => renderErrorPage(brand, ...given),
    expired: (...given) => renderExpiredPage(brand, ...given),
    codeInput: (...given) => renderCodeInput(brand, ...given),
    codeConfirmation: (...given) => renderCodeConfirmation(brand, ...given),
    deviceRefused: () => renderDeviceRefused(brand),
    deviceSuccess: (...given) => renderDeviceSuccess(brand, ...given),
    logout: (...given) => renderLogout(brand, ...given),
    loggedOut: (...given) => renderLoggedOut(brand, ...given),
    leave: (...given) => renderLeavePage(brand, ...given),
  };
}
