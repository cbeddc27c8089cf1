/** TLS material in files that may be replaced while the program runs. */
import { readFile } from "node:fs/promises";
import { createSecureContext, type SecureContextOptions } from "node:tls";
import type { Clock } from "../clock.ts";
import { messageOf } from "../errors.ts";
import type { Logger } from "../log.ts";

export interface TlsFiles {
  certFile: string;
  keyFile: string;
  /** When set, clients must show a certificate signed by one of these. */
  clientCaFile?: string | undefined;
}

/** Reads the files and checks that they belong together; the error names the file. */
export async function readTlsFiles(files: TlsFiles): Promise<SecureContextOptions> {
  const [cert, key, ca] = await Promise.all([
    readPem(files.certFile),
    readPem(files.keyFile),
    files.clientCaFile === undefined ? undefined : readPem(files.clientCaFile),
  ]);
  const options: SecureContextOptions = ca === undefined ? { cert, key } : { cert, key, ca };
  try {
    createSecureContext(options);
  } catch (error) {
    throw new Error(`cannot use ${files.certFile} with ${files.keyFile}: ${messageOf(error)}`);
  }
  return options;
}

/**
 * Calls `changed` with new material when the files differ from `current`, looking every `periodMs`. Files that do not
 * fit together (a certificate was replaced and its key not yet) are looked at again next time; the old ones stay.
 */
export function watchTlsFiles(
  files: TlsFiles,
  current: SecureContextOptions,
  options: { clock: Clock; periodMs: number; log: Logger; changed: (options: SecureContextOptions) => void },
): () => void {
  let known = fingerprint(current);
  let busy = false;
  const look = async () => {
    try {
      const found = await readTlsFiles(files);
      if (fingerprint(found) === known) return;
      options.changed(found);
      known = fingerprint(found);
      options.log.info({ certFile: files.certFile }, "the TLS certificate was read again");
    } catch (error) {
      options.log.warn(`the TLS files were not read again, the old ones stay: ${messageOf(error)}`);
    }
  };
  return options.clock.every(options.periodMs, () => {
    if (busy) return;
    busy = true;
    void look().finally(() => {
      busy = false;
    });
  });
}

async function readPem(file: string): Promise<Buffer> {
  try {
    return await readFile(file);
  } catch (error) {
    throw new Error(`cannot read ${file}: ${messageOf(error)}`);
  }
}

function fingerprint({ cert, key, ca }: SecureContextOptions): string {
  return [cert, key, ca].map(String).join("\0");
}
