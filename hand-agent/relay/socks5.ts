/** SOCKS 5 (RFC 1928), CONNECT without authentication: for programs that speak no HTTP. */
import type { Socket } from "node:net";
import { parseHost, type Target } from "../../kit/network/host-name.ts";
import { ByteSource } from "./byte-source.ts";
import type { RefusalReason } from "./refusal.ts";

export const SOCKS_VERSION = 5;
const NO_AUTHENTICATION = 0;
const NOT_ACCEPTABLE = 0xff;
const CONNECT = 1;
const IPV4 = 1;
const NAME = 3;
const IPV6 = 4;

const SUCCEEDED = 0;
const GENERAL_FAILURE = 1;
const NOT_ALLOWED = 2;
const HOST_UNREACHABLE = 4;
const COMMAND_NOT_SUPPORTED = 7;

/** The target that the client asks for. Undefined when there is none; it has been told, and its end is near. */
export async function readSocksRequest(socket: Socket): Promise<Target | undefined> {
  const source = new ByteSource(socket);
  const methods = await source.take((await source.take(2))?.[1] ?? 0);
  if (methods === undefined || !methods.includes(NO_AUTHENTICATION)) {
    socket.end(Buffer.from([SOCKS_VERSION, NOT_ACCEPTABLE]));
    return undefined;
  }
  socket.write(Buffer.from([SOCKS_VERSION, NO_AUTHENTICATION]));
  const head = await source.take(4);
  if (head === undefined) return undefined;
  const text = await readHost(source, head[3]!);
  const port = (await source.take(2))?.readUInt16BE(0);
  source.release();
  if (text === undefined || port === undefined) return endSocks(socket, GENERAL_FAILURE);
  if (head[1] !== CONNECT) return endSocks(socket, COMMAND_NOT_SUPPORTED);
  const host = parseHost(text);
  if (host === undefined || port === 0) return endSocks(socket, NOT_ALLOWED);
  return { host, port };
}

async function readHost(source: ByteSource, type: number): Promise<string | undefined> {
  switch (type) {
    case IPV4:
      return (await source.take(4))?.join(".");
    case IPV6: {
      const groups = (await source.take(16))?.toString("hex").match(/.{4}/g);
      return groups ? `[${groups.join(":")}]` : undefined;
    }
    case NAME:
      return (await source.take((await source.take(1))?.[0] ?? 0))?.toString("latin1");
    default:
      return undefined;
  }
}

export function acceptSocks(socket: Socket): void {
  socket.write(answer(SUCCEEDED));
}

export function refuseSocks(socket: Socket, reason: RefusalReason): void {
  const denied = /not_allowed$/.test(reason);
  socket.end(answer(denied ? NOT_ALLOWED : reason === "unreachable" ? HOST_UNREACHABLE : GENERAL_FAILURE));
}

function endSocks(socket: Socket, code: number): undefined {
  socket.end(answer(code));
}

/** The address that follows is that of the relay's end, which is nobody's business. */
function answer(code: number): Buffer {
  return Buffer.from([SOCKS_VERSION, code, 0, IPV4, 0, 0, 0, 0, 0, 0]);
}
