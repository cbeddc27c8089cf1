/** Why the way through a corporate proxy did not come about: the transport does not tell what the proxy said. */
import { connect } from "node:net";
import type { Clock } from "../kit/clock.ts";
import { parseServerUrl } from "../kit/dial/dial.ts";
import { type ProxySettings, proxyFor } from "../kit/dial/proxy-rules.ts";
import { messageOf } from "../kit/errors.ts";
import { parseHost } from "../kit/network/host-name.ts";
import { connectThroughProxy } from "./relay/corporate-proxy.ts";
import { RelayRefusal } from "./relay/refusal.ts";

const ASK_WITHIN_MS = 5_000;

export interface ProxyQuestion {
  readonly url: string;
  readonly proxy: ProxySettings;
  readonly clock: Clock;
}

/** Asks the proxy once more; undefined when there is none on the way, or when it lets through. Never rejects. */
export async function proxyRefusal({ url, proxy, clock }: ProxyQuestion): Promise<string | undefined> {
  const limit = new AbortController();
  const stop = clock.after(ASK_WITHIN_MS, () => limit.abort(new Error("it does not answer")));
  try {
    const { host, port } = parseServerUrl(url);
    const route = proxyFor(host, port, proxy);
    const target = parseHost(host);
    if (route === undefined || target === undefined) return undefined;
    const socket = connect(route.port, route.host);
    const through = await connectThroughProxy(socket, route, { host: target, port }, limit.signal);
    through.destroy();
    return undefined;
  } catch (error) {
    const text = messageOf(error);
    if (!(error instanceof RelayRefusal)) return `the proxy cannot be used: ${text}`;
    return text.endsWith("status 407") ? `${text} (it wants another user or password)` : text;
  } finally {
    stop();
  }
}
