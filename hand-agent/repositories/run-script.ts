/** Runs a script of the agent's in a hand; when it is given up, its processes are ended. */
import type { ExitStatus, Hand, HandPipe } from "../drivers/driver.ts";

export interface ScriptRun<T> {
  readonly script: string;
  readonly args: readonly string[];
  readonly callId: string;
  /** Reads the output to its end. */
  readonly read: (pipe: HandPipe, exit: Promise<ExitStatus>) => Promise<T>;
}

const TOLD_CHARS = 2_000;
const KILL_WITHIN_MS = 3_000;
/** Asks nobody, and speaks the language in which its messages are looked at. */
const ENV = { GIT_TERMINAL_PROMPT: "0", LC_ALL: "C" };

/** `err` is the end of what it said of errors. Rejects with the signal's reason. */
export async function runScript<T>(
  hand: Hand,
  { script, args, callId, read }: ScriptRun<T>,
  signal: AbortSignal,
): Promise<{ code: number; out: T; err: string }> {
  signal.throwIfAborted();
  const argv = ["/bin/sh", "-c", script, callId, ...args] as const;
  const child = await hand.exec({ argv, env: ENV, callId }, signal);
  const kill = () => void hand.killCall(callId, { withinMs: KILL_WITHIN_MS, also: child }).catch(() => {});
  signal.addEventListener("abort", kill, { once: true });
  try {
    if (signal.aborted) kill();
    const [{ code }, out, err] = await Promise.all([
      child.exit,
      read(child.stdout, child.exit),
      textOf(child.stderr),
    ]);
    signal.throwIfAborted();
    return { code, out, err };
  } finally {
    signal.removeEventListener("abort", kill);
  }
}

/** Its last 2,000 characters. */
export async function textOf(pipe: HandPipe): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  for await (const chunk of pipe.chunks)
    text = (text + decoder.decode(chunk, { stream: true })).slice(-TOLD_CHARS);
  return text;
}
