/** The commands of an environment that run once when a hand is made. */
import { type Hand, HandError, type HandPipe } from "./drivers/driver.ts";

/** Of the output of a failed command, this much of its end is told. */
const TOLD_CHARS = 1_000;

/** Runs them one after the other in the work directory. Throws HandError with the first that fails. */
export async function runSetup(
  hand: Hand,
  commands: readonly string[],
  signal: AbortSignal,
  whose = "",
): Promise<void> {
  for (const [index, command] of commands.entries()) {
    const child = await hand.exec({ argv: ["/bin/sh", "-c", command], callId: `setup-${index + 1}` }, signal);
    const [{ code }, out, err] = await Promise.all([child.exit, endOf(child.stdout), endOf(child.stderr)]);
    signal.throwIfAborted();
    if (code !== 0)
      throw new HandError(
        `setup command ${index + 1}${whose && ` ${whose}`} ended with ${code}: ${(out + err).slice(-TOLD_CHARS)}`,
      );
  }
}

async function endOf(pipe: HandPipe): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  for await (const chunk of pipe.chunks)
    text = (text + decoder.decode(chunk, { stream: true })).slice(-TOLD_CHARS);
  return text;
}
