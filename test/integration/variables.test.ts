/** R22: what sandboxes of a session with variables send to a variable's hosts, from programs in hands to a real host. */
import { execFile, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { chmod, copyFile, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { placeholderOf } from "../../kit/vault/placeholder.ts";
import { NetworkMode } from "../../proto/gen/tendon/v1/environment_pb.js";
import { useDocker, whyNoDocker } from "../kit/docker.ts";
import { ensureNodeImage } from "../kit/docker-images.ts";
import { eventually } from "../kit/eventually.ts";
import { whyNoPrivateNetwork } from "../kit/private-network.ts";
import type { TunnelHand } from "../kit/tunnel-rig.ts";
import { PRIVATE_HOST, startVariableRig, VALUE, type VariableRig } from "../kit/variable-rig.ts";
import { plain } from "../kit/vault-rig.ts";

const PLACEHOLDER = placeholderOf("API_KEY");
const MIB = 1024 * 1024;
/** Also where it is installed and not in everybody's PATH. */
const GO = ["go", "/usr/local/go/bin/go"].find((file) => spawnSync(file, ["version"]).status === 0);
/** What a service in Go does: its own HTTP, which finds relay and roots by the usual variables. */
const GO_PROGRAM = `package main

import ("fmt"; "io"; "net/http"; "os")

func main() {
	request, _ := http.NewRequest("GET", os.Args[1], nil)
	request.Header.Set("X-Key", os.Getenv("API_KEY"))
	response, err := http.DefaultClient.Do(request)
	if err != nil { fmt.Println(err); os.Exit(1) }
	body, _ := io.ReadAll(response.Body)
	fmt.Print(string(body))
}
`;
const JAVA_PROGRAM = `
public class Fetch {
  public static void main(String[] args) throws Exception {
    var connection = new java.net.URL(args[0]).openConnection();
    connection.setRequestProperty("X-Key", System.getenv("API_KEY"));
    System.out.print(new String(connection.getInputStream().readAllBytes()));
  }
}
`;

describe.skipIf(whyNoPrivateNetwork() !== undefined)("a variable of a session", () => {
  let rig: VariableRig;
  let hand: TunnelHand;
  let at: string;
  beforeAll(async () => {
    // The proxy itself does not reach the private host; the hand agent's machine does, and says so.
    rig = await startVariableRig({
      agentEnv: { TENDON_HAND_AGENT_REACH: `${PRIVATE_HOST}:*` },
      proxy: { deny: [PRIVATE_HOST] },
    });
    hand = await rig.newHand();
    at = rig.urlOf("api.example");
  });
  afterAll(() => rig?.stop());

  /** What the host got last. */
  const last = () => rig.host.seen.at(-1)!;

  /** Results of what the audit log says of the session's uses, once one of them is this. */
  async function audited(
    action: "inject" | "refuse",
    result: string,
  ): Promise<{ host: string; subject: string }> {
    return eventually(async () => {
      const entries = await rig.audit({ action: `credential.${action}`, sessionId: hand.sessionId });
      const found = entries.find(
        ({ detail }) => (JSON.parse(detail) as { result: string }).result === result,
      );
      return found && { host: (JSON.parse(found.detail) as { host: string }).host, subject: found.subject };
    });
  }

  /** Sends each text over a connection of its own and gives what came back, until it was closed. */
  async function raw(
    target: string,
    texts: readonly string[],
    servername?: string,
    from = hand,
  ): Promise<string[]> {
    const [name = ""] = target.split(":");
    const quoted = texts.map(
      (text) =>
        `$'${text.replaceAll("\\", "\\\\").replaceAll("'", "\\'").replaceAll("\r", "\\r").replaceAll("\n", "\\n")}'`,
    );
    const printed = await from.bash(`node fetch.mjs ${target} ${servername ?? name} ${quoted.join(" ")}`);
    return printed
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as string);
  }

  test("is a placeholder in the hand, and its value at the host: in headers, in Basic credentials, in a body whose length is right", async () => {
    expect(await hand.bash('echo "$API_KEY"')).toBe(`${PLACEHOLDER}\n`);
    const said = await hand.bash(
      `curl -sS -H "X-Key: $API_KEY" -u "me:$API_KEY" --data-binary "a $API_KEY b" -H 'content-type: text/plain' ${at}/`,
    );
    const { headers, body } = last();
    expect(headers["x-key"]).toBe(VALUE);
    expect(headers.authorization).toBe(`Basic ${Buffer.from(`me:${VALUE}`).toString("base64")}`);
    expect(body.toString()).toBe(`a ${VALUE} b`);
    expect(headers["content-length"]).toBe(String(VALUE.length + 4));
    // The host repeats all three.
    expect(said).toBe("[redacted] Basic [redacted] a [redacted] b");
    expect(await audited("inject", "200")).toMatchObject({ host: `api.example:${rig.host.port}` });
    const [opened] = await rig.audit({ action: "credential.open", sessionId: hand.sessionId });
    expect(JSON.parse(opened!.detail)).toEqual({
      vault_id: expect.stringMatching(/^vlt_/),
      variable: "API_KEY",
      epoch: expect.any(String),
    });
  });

  test("reaches the host from python, git and Node, which trust the proxy without being told", async () => {
    const python = `import os, urllib.request as r; print(r.urlopen(r.Request("${rig.urlOf("deep.wild.example")}/py", headers={"X-Key": os.environ["API_KEY"]})).read().decode())`;
    expect(await hand.bash(`/usr/bin/python3 -c '${python}'`)).toBe("[redacted]  \n");
    expect(last()).toMatchObject({
      url: "/py",
      headers: { "x-key": VALUE, host: `deep.wild.example:${rig.host.port}` },
    });
    await hand.bash(`git -c http.extraHeader="X-Key: $API_KEY" ls-remote ${at}/a.git; true`);
    const asked = rig.host.seen.filter(({ url }) => url.startsWith("/a.git/"));
    expect(asked[0]).toMatchObject({
      url: "/a.git/info/refs?service=git-upload-pack",
      headers: { "x-key": VALUE },
    });
    const [said] = await raw(`api.example:${rig.host.port}`, [get(`api.example:${rig.host.port}`, "/node")]);
    expect(said).toMatch(/^HTTP\/1.1 200 OK\r\n[\s\S]*\[redacted\]/);
    expect(last()).toMatchObject({ url: "/node", headers: { "x-key": VALUE } });
  });

  test.skipIf(!existsSync("/usr/bin/keytool"))("is trusted by Java's own tools", async () => {
    const listed = await hand.bash(
      "keytool -list -keystore /mnt/trust/roots.jks -storepass changeit 2>&1 | tail -n +1",
    );
    expect(listed).toMatch(/trustedCertEntry/);
    expect(Number(/contains (\d+) entries/.exec(listed)?.[1])).toBe(
      Number(await hand.bash("grep -c BEGIN /mnt/trust/roots.pem")),
    );
  });

  test.skipIf(!existsSync("/usr/bin/javac"))("reaches the host from a program in Java", async () => {
    await hand.bash(`cat >Fetch.java <<'END_OF_PROGRAM'\n${JAVA_PROGRAM}\nEND_OF_PROGRAM`);
    const said = await hand.bash(`java Fetch.java ${rig.urlOf("deep.wild.example")}/java 2>&1`);
    expect(said).toMatch(/\[redacted\] {2}$/);
    expect(last()).toMatchObject({ url: "/java", headers: { "x-key": VALUE } });
  });

  test.skipIf(GO === undefined)("reaches the host from a program in Go", async () => {
    const folder = await mkdtemp(join(tmpdir(), "tendon-go-"));
    try {
      await writeFile(join(folder, "main.go"), GO_PROGRAM);
      const options = { cwd: folder, env: { ...process.env, GOTOOLCHAIN: "local", GO111MODULE: "off" } };
      await promisify(execFile)(GO!, ["build", "-o", "fetch", "main.go"], options);
      const { agentDataDir } = rig.tunnels;
      const inHand = join(agentDataDir, "hands", hand.handId, "work", "fetch");
      await copyFile(join(folder, "fetch"), inHand);
      await chmod(inHand, 0o755);
      expect(await hand.bash(`./fetch ${rig.urlOf("deep.wild.example")}/go`)).toBe("[redacted]  ");
      expect(last()).toMatchObject({ url: "/go", headers: { "x-key": VALUE } });
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  });

  test("stays a placeholder where it is not for the host, not for that place, in URLs, and when there is none of that name", async () => {
    const { home } = rig.tunnels.vault;
    const vault = await home.newVault();
    const add = (name: string, allowedHosts: string[], inBody: boolean) =>
      home.addCredential(
        vault,
        { kind: { case: "environmentVariable", value: { name, allowedHosts, inHeaders: !inBody, inBody } } },
        `value-of-${name}-0123456789`,
      );
    const otherId = await add("OTHER_KEY", ["other.example"], false);
    await add("ONLY_BODY", ["api.example"], true);
    const second = await rig.newHand({ vaultIds: [vault] });
    const unknown = placeholderOf("NO_SUCH");
    await second.bash(
      `curl -sS -H "X-Other: $OTHER_KEY" -H "X-Body: $ONLY_BODY" -H "X-None: ${unknown}" --data-raw "$ONLY_BODY" "${at}/q?k=$ONLY_BODY"`,
    );
    const { headers, body, url } = last();
    expect(headers).toMatchObject({
      "x-other": placeholderOf("OTHER_KEY"),
      "x-body": placeholderOf("ONLY_BODY"),
      "x-none": unknown,
    });
    expect(body.toString()).toBe("value-of-ONLY_BODY-0123456789");
    expect(url).toBe(`/q?k=${placeholderOf("ONLY_BODY")}`);
    const reasons = await eventually(async () => {
      const entries = await rig.audit({ action: "credential.refuse", sessionId: second.sessionId });
      return entries.length < 4 ? undefined : entries;
    });
    const results = reasons.map(({ detail, subject }) => [
      (JSON.parse(detail) as { result: string }).result,
      subject,
    ]);
    expect(results.map(([result]) => result).sort()).toEqual([
      "host_not_allowed",
      "no_such_variable",
      "not_in_headers",
      "not_in_urls",
    ]);
    expect(results).toContainEqual(["host_not_allowed", otherId]);
  });

  test("is put into bodies up to 1 MiB, also when their length is not said; compressed and larger ones pass as they are", async () => {
    const send = (make: string, more = "") =>
      hand.bash(`${make} | curl -sS -o /dev/null ${more} --data-binary @- ${at}/body`);
    await send('printf "a%sb" "$API_KEY"', "-H 'transfer-encoding: chunked' -H 'content-type: text/plain'");
    expect(last()).toMatchObject({ headers: { "content-length": String(VALUE.length + 2) } });
    expect(last().body.toString()).toBe(`a${VALUE}b`);
    await send('printf "%s" "$API_KEY" | gzip -n', "-H 'content-encoding: gzip'");
    expect(createHash("sha256").update(last().body).digest("hex")).toBe(
      (await hand.bash('printf "%s" "$API_KEY" | gzip -n | sha256sum')).slice(0, 64),
    );
    await audited("refuse", "body_compressed");
    const large = `(printf "%s" "$API_KEY"; head -c ${MIB} /dev/zero)`;
    for (const chunked of ["", "-H 'transfer-encoding: chunked'"]) {
      await send(large, chunked);
      expect(last().body.subarray(0, PLACEHOLDER.length).toString()).toBe(PLACEHOLDER);
      expect(last().body.length).toBe(PLACEHOLDER.length + MIB);
    }
    await audited("refuse", "body_too_large");
  });

  test("is taken out of answers: compressed ones, headers, and such as come byte by byte; what cannot be read is not passed on", async () => {
    const ask = (path: string) =>
      hand.bash(`curl -sS --suppress-connect-headers -i -H "X-Key: $API_KEY" ${at}${path}`);
    for (const path of ["/gzip", "/br", "/pieces"]) expect(await ask(path)).toMatch(/\r\n\r\n\[redacted\] /);
    const headers = await ask("/header");
    expect(headers).toContain("x-said: [redacted]");
    expect(headers).toContain("set-cookie: a=1\r\nset-cookie: b=[redacted]\r\n");
    expect(headers).not.toMatch(/^x-of-/im);
    expect(await ask("/odd")).toMatch(/^HTTP\/1.1 502 [\s\S]*tendon-egress-error: bad_answer/);
    expect(await ask("/coded")).toMatch(/^HTTP\/1.1 502 [\s\S]*tendon-egress-error: bad_answer/);
    expect(await ask("/switched")).toMatch(/^HTTP\/1.1 502 [\s\S]*tendon-egress-error: unreachable/);
    // A redirect is the program's to follow.
    expect(await ask("/redirect")).toMatch(/^HTTP\/1.1 302 [\s\S]*location: https:\/\/evil.example\//);
    expect(await hand.bash(`curl -sS ${at}/large | sha256sum`)).toContain(hashOfLarge());
    // An answer without end is passed on as it comes, and ends with the program that reads it.
    const firstLine = `import urllib.request as r; print(r.urlopen("${at}/open").readline().decode().strip())`;
    expect(await hand.bash(`/usr/bin/python3 -c '${firstLine}'`)).toBe("data: first\n");
  });

  test("goes to no other host than that of its connection: other names in Host, in the request line or in TLS are refused", async () => {
    const target = `api.example:${rig.host.port}`;
    const host = `Host: ${target}\r\n`;
    const key = "X-Key: $API_KEY\r\nConnection: close\r\n\r\n";
    const before = rig.host.seen.length;
    const cases: [reason: string, text: string][] = [
      ["host_differs", `GET / HTTP/1.1\r\nHost: evil.example\r\n${key}`],
      ["host_differs", `GET / HTTP/1.1\r\nHost: other.example:${rig.host.port}\r\n${key}`],
      ["host_differs", `GET / HTTP/1.1\r\nHost: api.example:1\r\n${key}`],
      ["bad_request", `GET / HTTP/1.1\r\n${host}Host: evil.example\r\n${key}`],
      ["bad_request", `GET / HTTP/1.1\r\n${key}`],
      ["bad_request", `GET https://evil.example/ HTTP/1.1\r\n${host}${key}`],
      [
        "bad_request",
        `POST / HTTP/1.1\r\n${host}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n${key}0\r\n\r\n`,
      ],
      ["bad_request", `POST / HTTP/1.1\r\n${host}Content-Length: 3\r\nContent-Length: 4\r\n${key}abcd`],
      ["bad_request", `GET / HTTP/1.1\r\n${host}X-A: b\r\n Host: evil.example\r\n${key}`],
      ["bad_request", `GET / HTTP/1.1\r\n${host}X-A: b\nX-B: c\r\n${key}`],
      ["not_supported", `POST / HTTP/1.1\r\n${host}Transfer-Encoding: gzip, chunked\r\n${key}0\r\n\r\n`],
      ["not_supported", `GET / HTTP/1.1\r\n${host}Upgrade: websocket\r\n${key.replace("close", "upgrade")}`],
      ["not_supported", `CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n${key}`],
      ["too_large", `GET / HTTP/1.1\r\n${host}X-A: ${"a".repeat(70_000)}\r\n${key}`],
    ];
    const answers = await raw(
      target,
      cases.map(([, text]) => text),
    );
    const reasons = answers.map((answer) => /tendon-egress-error: (\w+)/.exec(answer)?.[1] ?? answer);
    expect(reasons).toEqual(cases.map(([reason]) => reason));
    expect(answers.join("")).not.toContain(VALUE);
    const [plainHttp] = await raw(target, [`GET / HTTP/1.1\r\n${host}${key}`], "none");
    expect(plainHttp).toMatch(/^HTTP\/1.1 501 [\s\S]*https:\/\//);
    const [otherName] = await raw(target, [`GET / HTTP/1.1\r\n${host}${key}`], "evil.example");
    expect(otherName).toMatch(/^error /);
    expect(rig.host.seen.length).toBe(before);
  });

  test("is not sent to a host whose certificate is another's", async () => {
    const before = rig.host.seen.length;
    const said = await hand.bash(
      `curl -sS --suppress-connect-headers -i -H "X-Key: $API_KEY" ${rig.urlOf("wrong.example")}/`,
    );
    expect(said).toMatch(/^HTTP\/1.1 502 [\s\S]*tendon-egress-error: certificate[\s\S]*not trusted/);
    expect(rig.host.seen.length).toBe(before);
    await audited("inject", "no_answer");
  });

  test("reaches hosts that only the hand agent's network has, by the way back", async () => {
    expect(await hand.bash(`curl -sS -H "X-Key: $API_KEY" ${rig.urlOf(PRIVATE_HOST)}/private`)).toBe(
      "[redacted]  ",
    );
    expect(last()).toMatchObject({ url: "/private", headers: { "x-key": VALUE } });
    await expect(audited("inject", "200")).resolves.toBeDefined();
  });

  test("has passed the hand agent and the server inside of TLS alone", () => {
    const passed = Buffer.concat(rig.throughAgent);
    expect(passed.includes("tendon-placeholder-API_KEY")).toBe(true); // its name, when the hand was made
    // What curl sends of its own accord stands in no command and no output.
    const inside = [VALUE, Buffer.from(`me:${VALUE}`).toString("base64"), "User-Agent: curl"];
    for (const secret of inside) expect(passed.includes(secret)).toBe(false);
  });

  test("has its new value from the next request on, also on a connection that stands", async () => {
    const [credential] = (await rig.tunnels.vault.home.vaults.listCredentials({ vaultId: rig.vault }))
      .credentials;
    const vault = await rig.tunnels.vault.home.newVault();
    const use = credential!.use!;
    const credentialId = await rig.tunnels.vault.home.addCredential(vault, use, "first-value-0123456789");
    const third = await rig.newHand({ vaultIds: [vault] });
    const asked = third.bash(
      `curl -sS -H "X-Key: $API_KEY" ${at}/one --next -sS -H "X-Key: $API_KEY" ${at}/held --next -sS -H "X-Key: $API_KEY" ${at}/two`,
    );
    const held = await eventually(() => rig.host.held);
    await rig.tunnels.vault.home.vaults.updateCredential({
      credentialId,
      secret: plain("second-value-0123456789"),
    });
    held();
    expect(await asked).toBe("[redacted]  [redacted]  [redacted]  ");
    const seen = rig.host.seen.slice(-3).map(({ url, headers }) => [url, headers["x-key"]]);
    expect(seen).toEqual([
      ["/one", "first-value-0123456789"],
      ["/held", "first-value-0123456789"],
      ["/two", "second-value-0123456789"],
    ]);
  });

  test("wants a relay: a hand with the machine's network is not made, and the reason says so", async () => {
    const environment = { network: { mode: NetworkMode.UNRESTRICTED } };
    await expect(rig.newHand({ environment })).rejects.toThrow(/API_KEY.*network is none or limited/);
  });

  test("is no more once its session is archived", async () => {
    const ended = await rig.newHand();
    const asked = ended.bash(`curl -sS ${at}/held; curl -sS ${at}/`);
    asked.catch(() => {});
    const before = await eventually(() => rig.host.held);
    await rig.tunnels.vault.home.sessions.archiveSession({ sessionId: ended.sessionId, interrupt: true });
    await eventually(() => rig.host.heldClosed);
    before();
  });
});

test.skipIf(whyNoPrivateNetwork() !== undefined || whyNoDocker() !== undefined)(
  "a variable reaches its host from a container with the network none",
  async () => {
    const engine = await useDocker();
    const rig = await startVariableRig({ agentEnv: { DOCKER_HOST: engine.host } });
    try {
      const image = await ensureNodeImage(engine);
      const environment = { driver: "docker", image, network: { mode: NetworkMode.NONE } };
      const hand = await rig.newHand({ environment });
      const target = `api.example:${rig.host.port}`;
      expect(
        await hand.bash(
          `node fetch.mjs ${target} api.example $'${get(target, "/docker").replaceAll("\r\n", "\\r\\n")}'`,
        ),
      ).toContain("[redacted]");
      expect(rig.host.seen.at(-1)).toMatchObject({ url: "/docker", headers: { "x-key": VALUE } });
      // The agent keeps what is trusted; the hand cannot change it.
      expect(await hand.bash("echo x 2>&1 >/mnt/trust/roots.pem; ls /mnt/trust | wc -l")).toMatch(
        /(denied|Read-only)[\s\S]*3/,
      );
    } finally {
      await rig.stop();
      await engine.release();
    }
  },
);

function get(host: string, path: string): string {
  return `GET ${path} HTTP/1.1\r\nHost: ${host}\r\nX-Key: $API_KEY\r\nConnection: close\r\n\r\n`;
}

function hashOfLarge(): string {
  const hash = createHash("sha256");
  for (let block = 0; block < 16; block++) hash.update(Buffer.alloc(256 * 1024, block));
  return hash.digest("hex");
}
