/** `/admin/doctor`: what is wrong with the installation, as this node sees it. */

import Type from 'typebox';
import { asServer } from '../../database/connection_user.ts';
import { diagnose } from '../../doctor/doctor.ts';
import { checkForwarding } from '../../doctor/forwarding.ts';
import { type Report, reportOf, states } from '../../doctor/report.ts';
import { links, ok } from '../../http/describe.ts';
import { readPage } from '../../http/page.ts';
import { Nullable, named, StringEnum, strict, Time } from '../../http/schema.ts';
import { route, serve } from '../route.ts';
import { type AdminOptions, administration } from './options.ts';

const State = () => StringEnum(...states);
const check = {
  name: Type.String(),
  state: State(),
  summary: Type.String(),
  advice: Nullable(Type.String()),
  values: Type.Record(Type.String(), Type.Union([Type.String(), Type.Number(), Type.Boolean(), Type.Null()])),
};
const DoctorReport = named(
  'DoctorReport',
  Type.Object(
    {
      created_at: Time(),
      version: Type.String(),
      state: State(),
      checks: Type.Array(Type.Object(check, strict)),
      _links: links,
    },
    strict,
  ),
);

export const doctorRoutes = {
  read: route({
    ...administration,
    id: 'read_doctor',
    method: 'get',
    path: '/admin/doctor',
    summary: 'Look for what is wrong with the installation',
    description:
      'What `nuncio doctor` reports, as this node sees it, with what this request shows of the proxies in front. It only reads, and takes up to some seconds. Requests at the same time share one examination.',
    responses: ok('The report.', DoctorReport),
  }),
};

export function registerAdminDoctor(options: AdminOptions): void {
  const { db, config, metrics } = options;
  let running: Promise<Report> | undefined;

  serve(options, doctorRoutes.read, async ({ request }) => {
    readPage(request);
    running ??= asServer(() => diagnose({ config, db, metrics })).finally(() => {
      running = undefined;
    });
    const report = await running;
    const { raw } = request;
    const forwarding = checkForwarding({
      peer: raw.socket.remoteAddress ?? '',
      headers: raw.headers,
      trusted: config.trustProxy,
    });
    return {
      ...reportOf([...report.checks, forwarding]),
      created_at: report.created_at,
      _links: { self: { href: '/admin/doctor' } },
    };
  });
}
