/** The answer to a request, or why there is none. */
import type { ClientRequest, IncomingMessage } from "node:http";

/**
 * Call it before the request is ended. Rejects, too, where a host switches to another protocol (status 101), which no request
 * here asks for: Node then ends the connection, and says neither that there was an answer nor that it failed.
 */
export function answerTo(outgoing: ClientRequest): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    outgoing.once("response", (answer) => {
      if ((answer.statusCode ?? 0) >= 200) return resolve(answer);
      answer.destroy();
      reject(noAnswer());
    });
    // Later ones have nobody to tell, and must not end the program.
    outgoing.on("error", reject);
    outgoing.once("close", () => reject(noAnswer()));
  });
}

function noAnswer(): Error {
  return Object.assign(new Error("it gave no answer"), { code: "NO_ANSWER" });
}
