/** Looks at the first bytes of a connection and puts them back. */
import type { Socket } from "node:net";
import type { Clock } from "../clock.ts";

const HTTP2_PREFACE = Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "latin1");

export type FirstBytes = "http2" | "other";

/**
 * Decides by the HTTP/2 preface, which no HTTP/1 request can begin with. Calls back once the bytes suffice, with the
 * socket paused and nothing consumed; destroys the socket when they have not come after `withinMs`.
 */
export function readFirstBytes(
  socket: Socket,
  clock: Clock,
  withinMs: number,
  decided: (kind: FirstBytes) => void,
): void {
  let seen: Buffer = Buffer.alloc(0);
  const stopTimer = clock.after(withinMs, () => socket.destroy());
  const stop = () => {
    stopTimer();
    socket.off("data", onData);
    socket.off("close", stop);
    socket.off("end", stop);
  };
  const onData = (chunk: Buffer) => {
    seen = seen.length === 0 ? chunk : Buffer.concat([seen, chunk]);
    const length = Math.min(seen.length, HTTP2_PREFACE.length);
    const matches = seen.subarray(0, length).equals(HTTP2_PREFACE.subarray(0, length));
    if (matches && length < HTTP2_PREFACE.length) return;
    stop();
    socket.pause();
    socket.unshift(seen);
    decided(matches ? "http2" : "other");
  };
  socket.on("data", onData);
  socket.once("close", stop);
  socket.once("end", stop);
}
