import { expect, test } from "vitest";
import { chooseVersion } from "./protocol-version.ts";

const agent = (newest: number, oldest = 0) => ({ protocolVersion: newest, oldestProtocolVersion: oldest });

test.each([
  ["of one release", agent(1, 1), { oldest: 1, newest: 1 }, 1],
  ["an agent that names one version alone", agent(1), { oldest: 1, newest: 1 }, 1],
  ["a newer agent and an older server", agent(3, 2), { oldest: 1, newest: 2 }, 2],
  ["an older agent and a newer server", agent(2, 1), { oldest: 2, newest: 3 }, 2],
])("builds %s speak the newest version that both know", (_, greeting, own, chosen) => {
  expect(chooseVersion(greeting, own)).toBe(chosen);
});

test("builds too far apart are told which of them to update", () => {
  const refused = (reason: unknown, message: RegExp) =>
    expect.objectContaining({ reason, message: expect.stringMatching(message) });
  const unsupported = "PROTOCOL_VERSION_UNSUPPORTED";
  expect(() => chooseVersion(agent(1), { oldest: 2, newest: 3 })).toThrow(
    refused(unsupported, /speaks version 1 of the protocol, this server 2 to 3; update the hand agent$/),
  );
  expect(() => chooseVersion(agent(4, 3), { oldest: 1, newest: 2 })).toThrow(
    refused(unsupported, /speaks version 3 to 4 of the protocol, this server 1 to 2; update the server$/),
  );
});
