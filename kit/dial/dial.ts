/** Opens a grpc-js channel to a server the same way in every program that dials out. */
import { readFileSync } from "node:fs";
import { isIP } from "node:net";
import { checkServerIdentity as tlsCheck } from "node:tls";
import type { DescService } from "@bufbuild/protobuf";
import { Channel, type ChannelOptions, credentials } from "@grpc/grpc-js";
import type { Clock } from "../clock.ts";
import { messageOf, TendonError } from "../errors.ts";
import { MAX_GRPC_MESSAGE_BYTES } from "../limits.ts";
import { type Client, createClient, OpenCalls } from "../rpc/client.ts";
import { type ProxySettings, proxyFor } from "./proxy-rules.ts";
import { systemAuthorities } from "./system-authorities.ts";

export interface DialOptions {
  /** "http://host:port" or "https://host:port"; without a port, 80 or 443. */
  url: string;
  /** Certificates (PEM) to trust in place of the system's. Read when dialling. */
  caFile?: string | undefined;
  /** A certificate and its key (PEM) for servers that demand one. */
  clientCertificate?: { certFile: string; keyFile: string } | undefined;
  /** The bearer token, asked for at each call; undefined or "" sends none. One that fits no header fails the call. */
  token?: (() => string | undefined) | undefined;
  proxy: ProxySettings;
  clock?: Clock;
}

/** One connection of its own: it is shared with no other `dial`, so closing it leaves nothing behind. */
export interface Connection {
  readonly channel: Channel;
  readonly url: string;
  /** A client whose calls carry the token. */
  client<S extends DescService>(service: S): Client<S>;
  /** Open calls end as CANCELLED, at once. */
  close(): void;
}

/** Pings find a connection that died without a word; hot streams have heartbeats of their own besides. */
const KEEPALIVE_TIME_MS = 20_000;
const KEEPALIVE_TIMEOUT_MS = 8_000;
/**
 * The server name that TLS is told for a URL with an IP address. grpc-js would name the address, which the protocol does not
 * allow and Node 26 refuses; it has no way to name nothing. The certificate is still checked against the address.
 */
const NAME_FOR_ADDRESSES = "address.invalid";
const FIRST_RECONNECT_MS = 200;
const MAX_RECONNECT_MS = 5_000;

/**
 * Returns at once; the connection is made by the first call, and again by the first call after it broke. Throws an Error
 * with one clear line when the URL, a file or the proxy cannot be used. A peer that accepts and then says nothing is
 * bounded only by the deadlines of calls.
 */
export function dial(options: DialOptions): Connection {
  const { host, port, secure } = parseServerUrl(options.url);
  const authority = `${host}:${port}`;
  const channelOptions: ChannelOptions = {
    "grpc.default_authority": authority,
    "grpc.enable_channelz": 0,
    "grpc.enable_http_proxy": 0, // the variables that grpc-js would read are not the program's settings
    "grpc.enable_retries": 0, // retry lives in the programs
    "grpc.initial_reconnect_backoff_ms": FIRST_RECONNECT_MS,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.keepalive_time_ms": KEEPALIVE_TIME_MS,
    "grpc.keepalive_timeout_ms": KEEPALIVE_TIMEOUT_MS,
    "grpc.max_receive_message_length": MAX_GRPC_MESSAGE_BYTES,
    "grpc.max_reconnect_backoff_ms": MAX_RECONNECT_MS,
    "grpc.max_send_message_length": MAX_GRPC_MESSAGE_BYTES,
    "grpc.service_config_disable_resolution": 1,
    "grpc.use_local_subchannel_pool": 1,
  };
  const proxy = proxyFor(host, port, options.proxy);
  if (proxy !== undefined) {
    channelOptions["grpc.http_connect_target"] = `dns:${authority}`;
    if (proxy.credentials !== undefined) channelOptions["grpc.http_connect_creds"] = proxy.credentials;
  }
  if (secure && isIpAddress(host)) channelOptions["grpc.ssl_target_name_override"] = NAME_FOR_ADDRESSES;
  const target = proxy === undefined ? authority : `${proxy.host}:${proxy.port}`;
  const channel = new Channel(`dns:${target}`, channelCredentials(options, secure, host), channelOptions);
  const metadata = (): Record<string, string> => {
    const token = options.token?.();
    return token ? { authorization: `Bearer ${checkedToken(token)}` } : {};
  };
  const openCalls = new OpenCalls();
  const common = { metadata, openCalls };
  const clientOptions = options.clock === undefined ? common : { ...common, clock: options.clock };
  return {
    channel,
    url: options.url,
    client: (service) => createClient(service, channel, clientOptions),
    close: () => {
      openCalls.cancelAll();
      channel.close();
    },
  };
}

/** Throws UNAUTHENTICATED, without any part of the token, for what the server could never have given out. */
function checkedToken(token: string): string {
  if (/^[!-~]+$/.test(token)) return token;
  throw new TendonError("UNAUTHENTICATED", "the key holds a character that no key has (a line break?)");
}

/** The parts of a server's URL; the host of an IPv6 address is in brackets. Throws an Error that says what is wrong. */
export function parseServerUrl(text: string): { host: string; port: number; secure: boolean } {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || !["http:", "https:"].includes(url.protocol) || url.hostname === "") {
    throw new Error(`"${text}" is no server URL; it looks like http://host:7400 or https://host`);
  }
  if (url.username !== "" || url.password !== "") throw new Error("a server URL holds no user or password");
  if (!["", "/"].includes(url.pathname) || url.search !== "" || url.hash !== "") {
    throw new Error(`"${text}" is no server URL; it may hold no path`);
  }
  const secure = url.protocol === "https:";
  return { host: url.hostname, port: url.port === "" ? (secure ? 443 : 80) : Number(url.port), secure };
}

function channelCredentials({ caFile, clientCertificate }: DialOptions, secure: boolean, host: string) {
  if (!secure) return credentials.createInsecure();
  const ca = caFile === undefined ? systemAuthorities() : readPem(caFile);
  const key = clientCertificate === undefined ? null : readPem(clientCertificate.keyFile);
  const certificate = clientCertificate === undefined ? null : readPem(clientCertificate.certFile);
  if (!isIpAddress(host)) return credentials.createSsl(ca, key, certificate);
  const checkServerIdentity: typeof tlsCheck = (_name, peer) => tlsCheck(withoutBrackets(host), peer);
  return credentials.createSsl(ca, key, certificate, { checkServerIdentity });
}

function isIpAddress(host: string): boolean {
  return isIP(withoutBrackets(host)) !== 0;
}

function withoutBrackets(host: string): string {
  return host.replace(/^\[(.*)\]$/, "$1");
}

function readPem(file: string): Buffer {
  try {
    return readFileSync(file);
  } catch (error) {
    throw new Error(`cannot read ${file}: ${messageOf(error)}`);
  }
}
