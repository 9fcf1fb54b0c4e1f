/** Uploads, replaces and removes the logo of an app. A chosen image is shown before it is saved. */

import { useQueryClient } from '@tanstack/react-query';
import { Trash2, Upload } from 'lucide-react';
import { useState } from 'react';
import { FileTrigger } from 'react-aria-components';
import { appQuery } from '../../api/apps.ts';
import type { App } from '../../api/generated.ts';
import { describeFailure } from '../../api/problem.ts';
import { request } from '../../api/request.ts';
import { Button } from '../../ui/button.tsx';
import { ConfirmDialog } from '../../ui/dialog.tsx';
import { Card } from '../../ui/page.tsx';
import { Notice } from '../../ui/states.tsx';
import { tell } from '../../ui/toasts.tsx';
import { AppLogo, logoOf } from './app_logo.tsx';

const types = ['image/png', 'image/jpeg', 'image/webp'];
const bytesMax = 65_536;
const sideMax = 1_024;

interface Chosen {
  file: File;
  /** A `data:` URL: besides this server's images the page's policy allows only these. */
  preview: string;
}

export function LogoCard({ app }: { app: App }) {
  const [chosen, setChosen] = useState<Chosen | null>(null);
  const [failure, setFailure] = useState<string | null>(null);
  const choose = async (file: File | undefined) => {
    if (file === undefined) return;
    setChosen(null);
    setFailure(null);
    try {
      setChosen(await readChosen(file));
    } catch (error) {
      setFailure(describeFailure(error));
    }
  };
  return (
    <Card
      title="Logo"
      description="Users see it beside the app’s name when they connect the app and on their account page."
    >
      <div className="stack">
        {chosen === null ? (
          <Current app={app} onChoose={choose} />
        ) : (
          <Preview app={app} chosen={chosen} onDone={() => setChosen(null)} onFailure={setFailure} />
        )}
        {failure !== null && (
          <Notice look="bad" title="The logo was not saved" role="alert">
            <p>{failure}</p>
          </Notice>
        )}
      </div>
    </Card>
  );
}

function Current({ app, onChoose }: { app: App; onChoose: (file: File | undefined) => void }) {
  const hasLogo = logoOf(app) !== null;
  return (
    <div className="logo-row">
      <AppLogo app={app} isLarge />
      <div className="stack-small">
        <p className="soft small">
          PNG, JPEG or WebP, not animated, up to 64 KiB and 1,024 by 1,024 pixels. Square images look best.
          Metadata such as a photo’s location is removed.
        </p>
        <div className="row">
          <FileTrigger acceptedFileTypes={types} onSelect={(files) => onChoose(files?.[0])}>
            <Button>
              <Upload size={16} aria-hidden /> {hasLogo ? 'Replace logo' : 'Upload logo'}
            </Button>
          </FileTrigger>
          {hasLogo && <RemoveButton app={app} />}
        </div>
      </div>
    </div>
  );
}

interface PreviewProps {
  app: App;
  chosen: Chosen;
  onDone: () => void;
  onFailure: (message: string | null) => void;
}

function Preview({ app, chosen, onDone, onFailure }: PreviewProps) {
  const cache = useQueryClient();
  const [isPending, setPending] = useState(false);
  const id = app.client_id;
  const save = async () => {
    setPending(true);
    onFailure(null);
    try {
      const changed = await request('PUT /apps/{id}/logo', { path: { id }, body: chosen.file });
      cache.setQueryData(appQuery(id).queryKey, changed);
      await cache.invalidateQueries({ queryKey: ['apps'] });
      tell('Logo saved.');
    } catch (error) {
      onFailure(describeFailure(error));
    }
    onDone();
  };
  return (
    <>
      <div className="logo-row">
        <img className="avatar avatar-square avatar-large avatar-logo" src={chosen.preview} alt="New logo" />
        <div className="stack-small">
          <p>
            <strong>{chosen.file.name}</strong>
          </p>
          <div className="row">
            <Button look="primary" isPending={isPending} onPress={save}>
              Save logo
            </Button>
            <Button onPress={onDone}>Cancel</Button>
          </div>
        </div>
      </div>
      {app.state === 'verified' && app.role !== 'admin' && (
        <Notice look="warn" title="Saving removes the verification" role="status">
          <p>An administrator verified the app with the logo it has now.</p>
        </Notice>
      )}
    </>
  );
}

function RemoveButton({ app }: { app: App }) {
  const [isOpen, setOpen] = useState(false);
  const cache = useQueryClient();
  const id = app.client_id;
  const remove = async () => {
    await request('DELETE /apps/{id}/logo', { path: { id } });
    await Promise.all([
      cache.invalidateQueries({ queryKey: ['app', id] }),
      cache.invalidateQueries({ queryKey: ['apps'] }),
    ]);
    tell('Logo removed.');
  };
  return (
    <>
      <Button look="danger" onPress={() => setOpen(true)}>
        <Trash2 size={16} aria-hidden /> Remove
      </Button>
      <ConfirmDialog
        title="Remove the logo?"
        action="Remove logo"
        isOpen={isOpen}
        onClose={() => setOpen(false)}
        onConfirm={remove}
      >
        <p>
          Users see the app’s initial in the console, and no picture elsewhere.
          {app.state === 'verified' && app.role !== 'admin' && ' The app loses its verification.'}
        </p>
      </ConfirmDialog>
    </>
  );
}

/** @throws Error with a message for the user, for files that the server would refuse */
async function readChosen(file: File): Promise<Chosen> {
  if (!types.includes(file.type)) throw new Error('Choose a PNG, JPEG or WebP image.');
  if (file.size > bytesMax) {
    throw new Error(`The file is ${Math.ceil(file.size / 1_024)} KiB. The limit is 64 KiB.`);
  }
  const preview = await new Promise<string>((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(new Error('The file could not be read.'));
    reader.readAsDataURL(file);
  });
  const image = new Image();
  image.src = preview;
  await image.decode().catch(() => {
    throw new Error('The file is not an image that this browser can show.');
  });
  const { naturalWidth: width, naturalHeight: height } = image;
  if (width > sideMax || height > sideMax) {
    throw new Error(`The image is ${width} by ${height} pixels. The limit is 1,024 by 1,024.`);
  }
  return { file, preview };
}
