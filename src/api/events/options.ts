/** What the routes of events share. */

import Type from 'typebox';
import type { Config } from '../../config/config.ts';
import type { PublishedCertificate } from '../../egress/client_certificate.ts';
import type { Catalogue } from '../../events/catalogue.ts';
import type { StoredEvent } from '../../events/store.ts';
import type { DeliveryKeyring } from '../../webhooks/sending/delivery_keyring.ts';
import type { WebhookSettings } from '../../webhooks/settings.ts';
import type { RouteParts } from '../route.ts';

export interface EventRoutesOptions extends RouteParts {
  catalogue: Catalogue;
  config: Config;
  settings: WebhookSettings;
  deliveryKeys: DeliveryKeyring;
  /** Null if there is none. */
  clientCertificate: PublishedCertificate | null;
  /** Called after each commit with the stored events. */
  onPublished: (events: StoredEvent[]) => void;
  /** Called with the positions of events whose bodies were erased. */
  onErased: (positions: number[]) => void;
}

/** The heading of these operations in the reference. */
export const tag = 'events';

/** Visible ASCII. */
export const EventId = () => Type.String({ pattern: '^[!-~]+$', minLength: 1, maxLength: 255 });
