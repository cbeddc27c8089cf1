/**
 * The name that a TLS client asks for (SNI), read from the first bytes that it sends. Many names share an address at
 * big hosters, who go by this name: without a look at it, one allowed host there would open all of its neighbours.
 */
import type { Socket } from "node:net";
import { ByteSource } from "./byte-source.ts";

/** A ClientHello is below 2 KiB, with post-quantum keys; more than this is passed on unread. */
const MAX_HELLO_BYTES = 16 * 1024;
const HANDSHAKE_RECORD = 22;
const CLIENT_HELLO = 1;
const SERVER_NAME_EXTENSION = 0;
const HOST_NAME = 0;

export interface FirstWords {
  /** Undefined where there is none or it is not TLS. */
  readonly name: string | undefined;
  /** What the client had sent before it ended its side; else everything is still in the socket. */
  readonly unsent: Buffer;
}

export async function readServerName(socket: Socket): Promise<FirstWords> {
  const source = new ByteSource(socket);
  const hello = await readHello(source);
  return { name: hello === undefined ? undefined : serverNameOf(hello), unsent: source.release() };
}

/** The body of the ClientHello, put together from its records. */
async function readHello(source: ByteSource): Promise<Buffer | undefined> {
  let body = Buffer.alloc(0);
  for (let at = 0; at < MAX_HELLO_BYTES; ) {
    if (!(await source.fill(at + 1)) || source.buffered[at] !== HANDSHAKE_RECORD) return undefined;
    if (!(await source.fill(at + 5))) return undefined;
    const length = source.buffered.readUInt16BE(at + 3);
    if (length === 0 || length > MAX_HELLO_BYTES || !(await source.fill(at + 5 + length))) return undefined;
    body = Buffer.concat([body, source.buffered.subarray(at + 5, at + 5 + length)]);
    if (body[0] !== CLIENT_HELLO) return undefined;
    if (body.length >= 4 && body.length >= 4 + body.readUIntBE(1, 3)) return body.subarray(4);
    at += 5 + length;
  }
  return undefined;
}

/** Undefined also for what is cut or twisted: a server could not read a name in it either. */
export function serverNameOf(hello: Buffer): string | undefined {
  try {
    let at = 2 + 32; // version, random
    at += 1 + hello.readUInt8(at); // session id
    at += 2 + hello.readUInt16BE(at); // cipher suites
    at += 1 + hello.readUInt8(at); // compression methods
    const end = Math.min(hello.length, at + 2 + hello.readUInt16BE(at));
    at += 2;
    while (at + 4 <= end) {
      const type = hello.readUInt16BE(at);
      const length = hello.readUInt16BE(at + 2);
      at += 4;
      if (type === SERVER_NAME_EXTENSION) return hostNameOf(hello.subarray(at, at + length));
      at += length;
    }
    return undefined;
  } catch (error) {
    if (error instanceof RangeError) return undefined;
    throw error;
  }
}

function hostNameOf(list: Buffer): string | undefined {
  for (let at = 2; at + 3 <= list.length; ) {
    const type = list.readUInt8(at);
    const length = list.readUInt16BE(at + 1);
    if (type === HOST_NAME) return list.subarray(at + 3, at + 3 + length).toString("latin1");
    at += 3 + length;
  }
  return undefined;
}
