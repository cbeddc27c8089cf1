import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { systemClock } from "../../../kit/clock.ts";
import { RegistryCredentials, registryOf } from "./registry-credentials.ts";

let dir = "";
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "tendon-registry-auth-"));
});
afterAll(() => rm(dir, { recursive: true }));

let files = 0;
async function credentials(config: unknown): Promise<RegistryCredentials> {
  files += 1;
  const file = join(dir, `config-${files}.json`);
  await writeFile(file, typeof config === "string" ? config : JSON.stringify(config));
  return new RegistryCredentials({ file, helperEnv: { PATH: `${dir}:/usr/bin:/bin` } }, systemClock);
}

async function helper(name: string, script: string): Promise<void> {
  await writeFile(join(dir, `docker-credential-${name}`), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
}

const base64 = (text: string) => Buffer.from(text).toString("base64");

test("an image's registry is the host that its name begins with, else Docker's own", () => {
  const registries = ["debian:12", "team/app", "docker.io/team/app", "r.example:5000/a/b:1", "localhost/x"];
  expect(registries.map(registryOf)).toEqual([
    "index.docker.io",
    "index.docker.io",
    "index.docker.io",
    "r.example:5000",
    "localhost",
  ]);
});

test("credentials are those of the image's registry and of no other, in every form that docker login writes", async () => {
  const found = await credentials({
    auths: {
      "r.example:5000": { auth: base64("me:pass:word") },
      "https://old.example/v1/": { username: "u", password: "p" },
      "https://index.docker.io/v1/": { auth: base64("hub:secret") },
      "token.example": { identitytoken: "t-1", auth: "" },
      "empty.example": {},
    },
  });
  expect(await found.forImage("r.example:5000/app")).toEqual({
    username: "me",
    password: "pass:word",
    serveraddress: "r.example:5000",
  });
  expect(await found.forImage("old.example/app")).toMatchObject({ username: "u", password: "p" });
  expect(await found.forImage("debian")).toMatchObject({
    username: "hub",
    serveraddress: "https://index.docker.io/v1/",
  });
  expect(await found.forImage("token.example/a")).toEqual({
    identitytoken: "t-1",
    serveraddress: "token.example",
  });
  for (const image of ["empty.example/a", "r.example/app", "evil.example/r.example:5000/app"])
    expect(await found.forImage(image)).toBeUndefined();
});

test("credential helpers are asked by the registry's name and get nothing else", async () => {
  await helper("good", 'read S; echo "{\\"Username\\":\\"h\\",\\"Secret\\":\\"$S $TENDON_X\\"}"');
  await helper("token", 'echo "{\\"Username\\":\\"<token>\\",\\"Secret\\":\\"id\\"}"');
  await helper("none", 'echo "credentials not found in native keychain"; exit 1');
  process.env.TENDON_X = "leaked";
  const found = await credentials({
    credsStore: "none",
    credHelpers: { "good.example": "good", "token.example": "token" },
    auths: { "plain.example": { auth: base64("a:b") } },
  });
  expect(await found.forImage("good.example/x")).toMatchObject({
    username: "h",
    password: "good.example ",
  });
  expect(await found.forImage("token.example/x")).toMatchObject({ identitytoken: "id" });
  expect(await found.forImage("plain.example/x")).toMatchObject({ username: "a" });
  delete process.env.TENDON_X;
});

test("what is wrong with them is said without a word of what they hold (S2)", async () => {
  await helper("bad", "echo secret-word; echo secret-word >&2; exit 1");
  await helper("odd", "echo secret-word");
  const said = (config: unknown) =>
    credentials(config)
      .then((found) => found.forImage("r.example/x"))
      .then(
        () => "no error",
        (error: Error) => error.message,
      );
  expect(await said('{"auths": secret-word')).toMatch(/config-\d+\.json is not valid JSON$/);
  expect(await said("3")).toMatch(/holds no JSON object$/);
  expect(await said({ credsStore: "bad" })).toMatch(/could not give the credentials of r.example \(exit 1\)/);
  expect(await said({ credsStore: "odd" })).toMatch(/docker-credential-odd gave an answer that is none/);
  expect(await said({ credsStore: "missing" })).toMatch(/could not be started \(ENOENT\)/);
  expect(await said({ credsStore: "../evil" })).toMatch(/a name that is none/);
  const away = new RegistryCredentials({ file: join(dir, "none"), helperEnv: {} }, systemClock);
  await expect(away.forImage("r.example/x")).rejects.toThrow(/cannot be read \(ENOENT\)/);
});
