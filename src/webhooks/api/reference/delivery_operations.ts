/** Reference: operations on deliveries and recoveries. */

import Type from 'typebox';
import { keyParameter, pageParameters } from '../../../http/describe.ts';
import type { Operation, Parameter } from '../../../http/operation.ts';
import { requestSchema } from '../../../http/request_schema.ts';
import { runningMax } from '../../fan_out/recovery.ts';
import { deliveryStatuses } from '../../log/delivery.ts';
import { scannedByKindMax, scannedMax } from '../../log/delivery_list.ts';
import {
  bodyProblems,
  createdHeaders,
  Id,
  idParameter,
  jsonBody,
  read,
  StringEnum,
  Time,
  write,
} from './parts.ts';

export const deliveryOperations: Operation[] = [
  {
    id: 'list_deliveries',
    method: 'get',
    path: '/subscriptions/{id}/deliveries',
    tag: 'deliveries',
    summary: 'List deliveries',
    description:
      'The newest come first. With `Accept: text/event-stream` the newest 100 come as server-sent events, the oldest of them first, and then each delivery that is new or has changed: `event: delivery`, `id` (the sequence), `data` (a delivery as in the list). The last event is `end`, with the reason.',
    scopes: read,
    parameters: [
      idParameter('subscription'),
      ...pageParameters,
      {
        name: 'status',
        in: 'query',
        description:
          'Only deliveries in this state. `failing`: those that are pending after a failed attempt.',
        schema: StringEnum(...deliveryStatuses),
      },
      {
        name: 'kind',
        in: 'query',
        description: 'Only deliveries of this kind.',
        schema: requestSchema(Type.String()),
      },
      {
        name: 'since',
        in: 'query',
        description: 'Only deliveries created at this time or later.',
        schema: Time(),
      },
      {
        name: 'until',
        in: 'query',
        description: 'Only deliveries created before this time.',
        schema: Time(),
      },
      { name: 'id', in: 'query', description: 'Only the delivery with this id.', schema: Id() },
    ],
    responses: {
      200: {
        description: `A page. It scans at most ${scannedMax} deliveries, and at most ${scannedByKindMax} failing, failed or cancelled ones of a \`kind\`. With \`status\` or \`kind\` a page may be shorter than \`limit\`, or empty, and still have \`next\`.`,
        schema: 'DeliveryList',
        headers: ['Link'],
      },
    },
    problems: [404],
  },
  {
    id: 'read_delivery',
    method: 'get',
    path: '/deliveries/{id}',
    tag: 'deliveries',
    summary: 'Read a delivery',
    description: 'Includes the body and every attempt.',
    scopes: read,
    parameters: [idParameter('delivery')],
    responses: { 200: { description: 'The delivery.', schema: 'DeliveryDetails' } },
    problems: [404],
  },
  {
    id: 'resend_delivery',
    method: 'post',
    path: '/deliveries/{id}/resend',
    tag: 'deliveries',
    summary: 'Resend a delivery',
    description: 'Sends the delivery again with the same id.',
    scopes: write,
    parameters: [idParameter('delivery'), keyParameter],
    body: jsonBody('Nothing', {}, false),
    responses: { 202: { description: 'The delivery is due.', schema: 'Delivery', headers: createdHeaders } },
    problems: [404, 409, ...bodyProblems],
  },
];

const jobParameter: Parameter = {
  name: 'job',
  in: 'path',
  description: 'The recovery.',
  schema: Id(),
  required: true,
};

export const recoveryOperations: Operation[] = [
  {
    id: 'start_recovery',
    method: 'post',
    path: '/subscriptions/{id}/recover',
    tag: 'deliveries',
    summary: 'Recover the deliveries of a time range',
    description: `Resends failed and held deliveries, and delivers events from before the subscription was created. At most ${runningMax} recoveries of a subscription run at once.`,
    scopes: write,
    parameters: [idParameter('subscription'), keyParameter],
    body: jsonBody('RecoveryStart', { since: '2026-07-01T00:00:00Z', status: ['failed', 'held'] }),
    responses: { 202: { description: 'It has begun.', schema: 'Recovery', headers: createdHeaders } },
    problems: [404, 409, ...bodyProblems],
  },
  {
    id: 'read_recovery',
    method: 'get',
    path: '/subscriptions/{id}/recoveries/{job}',
    tag: 'deliveries',
    summary: 'Read a recovery',
    description: 'Shows the progress of a recovery.',
    scopes: read,
    parameters: [idParameter('subscription'), jobParameter],
    responses: { 200: { description: 'The recovery.', schema: 'Recovery' } },
    problems: [404],
  },
  {
    id: 'cancel_recovery',
    method: 'delete',
    path: '/subscriptions/{id}/recoveries/{job}',
    tag: 'deliveries',
    summary: 'Cancel a recovery',
    description: 'Deliveries that are already due are still sent.',
    scopes: write,
    parameters: [idParameter('subscription'), jobParameter],
    responses: { 204: { description: 'The recovery is cancelled.' } },
    problems: [404, 413, 415],
  },
];
