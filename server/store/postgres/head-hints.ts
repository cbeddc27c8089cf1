/** Hints between replicas over NOTIFY: which sessions have what newest position. Lost ones are made good by `EventStore.heads`. */
import { Backoff } from "../../../kit/backoff.ts";
import { type Clock, systemClock } from "../../../kit/clock.ts";
import { messageOf } from "../../../kit/errors.ts";
import type { Logger } from "../../../kit/log.ts";
import type { HeadHint, HintListener } from "../events.ts";
import { type DirectConnection, openDirectConnection } from "./direct-connection.ts";

export const HINT_CHANNEL = "tendon_heads";

/** Postgres takes less than 8000 bytes in one notification. */
const MAX_PAYLOAD_BYTES = 7_000;

const RECONNECT = { firstMs: 50, maxMs: 5_000, resetAfterMs: 10_000 };

/** One line a session: id, newest position (`-`: deleted), `w` when it has work. Session ids are ASCII without spaces. */
export function encodeHints(hints: readonly HeadHint[]): string[] {
  const payloads: string[] = [];
  let current = "";
  for (const { sessionId, head, hasWork } of hints) {
    const line = `${sessionId} ${head ?? "-"}${hasWork ? " w" : ""}`;
    if (current !== "" && current.length + line.length + 1 > MAX_PAYLOAD_BYTES) {
      payloads.push(current);
      current = "";
    }
    current += current === "" ? line : `\n${line}`;
  }
  if (current !== "") payloads.push(current);
  return payloads;
}

/** Skips lines that it does not know: anybody with the database's password may notify. */
export function decodeHints(payload: string): HeadHint[] {
  return payload.split("\n").flatMap((line) => {
    const match = /^(\S{1,80}) (-|\d{1,15})( w)?$/.exec(line);
    if (!match) return [];
    const [, sessionId = "", head = "", work] = match;
    return [{ sessionId, head: head === "-" ? undefined : BigInt(head), hasWork: work !== undefined }];
  });
}

/** `url` must be a direct connection, not a transaction-mode pooler's. Connects again whenever the connection ends. */
export function createHintListener(options: {
  url: string;
  applicationName: string;
  log: Logger;
  clock?: Clock;
}): HintListener {
  const { url, applicationName, log, clock = systemClock } = options;
  const stopping = new AbortController();
  let connection: DirectConnection | undefined;
  let loop: Promise<void> | undefined;

  const listen = async (handlers: Parameters<HintListener["start"]>[0]): Promise<void> => {
    const backoff = new Backoff(clock, RECONNECT);
    while (!stopping.signal.aborted) {
      try {
        connection = await openDirectConnection({
          url,
          applicationName,
          onNotification: (channel, payload) => {
            if (channel === HINT_CHANNEL) handlers.onHints(decodeHints(payload));
          },
        });
        // Stopped while it connected: nobody else would close it.
        if (stopping.signal.aborted) break;
        await connection.query(`listen ${HINT_CHANNEL}`);
        backoff.connected();
        handlers.onConnected();
        const error = await connection.ended;
        if (!stopping.signal.aborted)
          log.warn({ error: error && messageOf(error) }, "the listening connection ended");
      } catch (error) {
        if (!stopping.signal.aborted) log.warn({ error: messageOf(error) }, "cannot listen to the database");
      } finally {
        await connection?.close();
      }
      await clock.sleep(backoff.nextDelayMs(), stopping.signal).catch(() => {});
    }
  };

  return {
    async start(handlers) {
      loop ??= listen(handlers);
    },
    async stop() {
      stopping.abort();
      await connection?.close();
      await loop;
    },
  };
}
