/** `nuncio user create`: makes an account. */

import { createAccount } from '../accounts/account.ts';
import { type Command, textOption } from './command.ts';
import { passwordHelp, readPassword } from './password_option.ts';
import { withDatabase } from './storage.ts';

export const userCreate: Command = {
  options: {
    email: { type: 'string' },
    password: { type: 'string' },
    name: { type: 'string' },
    admin: { type: 'boolean' },
    json: { type: 'boolean' },
  },
  help: [
    ['--email E', 'address to log in with'],
    passwordHelp,
    ['--name N', 'what the user is called; by default the part of the address before the @'],
    ['--admin', 'makes the account an administrator: its console also administers the server'],
    ['--json', 'print JSON'],
  ],
  async run({ values }, { config, print }) {
    const name = textOption(values, 'name');
    const wanted = {
      email: textOption(values, 'email', true),
      password: await readPassword(values),
      isAdmin: values.admin === true,
      ...(name === undefined ? {} : { name }),
    };
    const account = await withDatabase(config, (db) => createAccount(db, wanted));
    const { id, email, isAdmin } = account;
    if (values.json === true) print(JSON.stringify({ id, email, name: account.name, admin: isAdmin }));
    else print(`created the user ${email} (${id})`);
  },
};
