/** What the reference server's tools, resources and prompts answer: the fixtures that the conformance suite asks for. */
import { fromJsonSchema, type McpServer, ResourceTemplate } from "@modelcontextprotocol/server";

/** One red pixel, and a sound without a sample. */
const IMAGE =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
const AUDIO = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=";

const text = (value: string) => ({ type: "text" as const, text: value });
const image = { type: "image" as const, data: IMAGE, mimeType: "image/png" };
const document = (uri: string, mimeType: string, value: string) => ({
  type: "resource" as const,
  resource: { uri, mimeType, text: value },
});

/** Keywords of JSON Schema that a reader could lose. As text: nothing here may look like a promise. */
const RICH_SCHEMA = JSON.parse(`{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "$defs": {
    "address": {
      "$anchor": "addressDef",
      "type": "object",
      "properties": { "street": { "type": "string" }, "city": { "type": "string" } }
    }
  },
  "properties": {
    "name": { "type": "string" },
    "address": { "$ref": "#/$defs/address" },
    "contactMethod": { "type": "string", "enum": ["phone", "email"] },
    "phone": { "type": "string" },
    "email": { "type": "string" }
  },
  "allOf": [{ "anyOf": [{ "required": ["phone"] }, { "required": ["email"] }] }],
  "if": { "properties": { "contactMethod": { "const": "phone" } }, "required": ["contactMethod"] },
  "then": { "required": ["phone"] },
  "else": { "required": ["email"] },
  "additionalProperties": false
}`) as Parameters<typeof fromJsonSchema>[0];

export function addContentTools(server: McpServer): void {
  const answers = {
    test_simple_text: [text("This is a simple text response for testing.")],
    test_image_content: [image],
    test_audio_content: [{ type: "audio" as const, data: AUDIO, mimeType: "audio/wav" }],
    test_embedded_resource: [
      document("test://embedded-resource", "text/plain", "This is an embedded resource content."),
    ],
    test_multiple_content_types: [
      text("Multiple content types test:"),
      image,
      document("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
    ],
  };
  for (const [name, content] of Object.entries(answers)) {
    server.registerTool(name, { description: `Answers ${name}` }, () => ({ content }));
  }
  server.registerTool("test_error_handling", { description: "Fails" }, () => {
    throw new Error("This tool intentionally returns an error for testing");
  });
  const richSchema = fromJsonSchema(RICH_SCHEMA);
  const rich = { description: "Tool with JSON Schema 2020-12 features", inputSchema: richSchema };
  server.registerTool("json_schema_2020_12_tool", rich, (input) => ({
    content: [text(JSON.stringify(input))],
  }));
  const region = { type: "string", "x-mcp-header": "Region" } as const;
  const headerSchema = fromJsonSchema<{ region: string }>({
    type: "object",
    properties: { region },
    required: ["region"],
  });
  const withHeader = { description: "Has its region in a header, too", inputSchema: headerSchema };
  server.registerTool("test_custom_header", withHeader, ({ region: where }) => ({ content: [text(where)] }));
}

export function addResources(server: McpServer): void {
  const fixed = [
    ["static-text", "text/plain", { text: "This is the content of the static text resource." }],
    ["static-binary", "image/png", { blob: IMAGE }],
    ["watched-resource", "text/plain", { text: "Watched resource content" }],
  ] as const;
  for (const [name, mimeType, value] of fixed) {
    const uri = `test://${name}`;
    const about = { description: `The resource ${name}`, mimeType };
    server.registerResource(name, uri, about, () => ({ contents: [{ uri, mimeType, ...value }] }));
  }
  const template = new ResourceTemplate("test://template/{id}/data", { list: undefined });
  const mimeType = "application/json";
  server.registerResource("template", template, { description: "By id", mimeType }, (uri, { id }) => ({
    contents: [
      {
        uri: uri.href,
        mimeType,
        text: JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` }),
      },
    ],
  }));
}

export function addPrompts(server: McpServer): void {
  const says = (content: ReturnType<typeof text> | typeof image | ReturnType<typeof document>) => ({
    role: "user" as const,
    content,
  });
  server.registerPrompt("test_simple_prompt", { description: "Without arguments" }, () => ({
    messages: [says(text("This is a simple prompt for testing."))],
  }));
  const two = fromJsonSchema<{ arg1: string; arg2: string }>(strings("arg1", "arg2"));
  const withArguments = { description: "With arguments", argsSchema: two };
  server.registerPrompt("test_prompt_with_arguments", withArguments, ({ arg1, arg2 }) => ({
    messages: [says(text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`))],
  }));
  const one = fromJsonSchema<{ resourceUri: string }>(strings("resourceUri"));
  const withResource = { description: "With a resource", argsSchema: one };
  server.registerPrompt("test_prompt_with_embedded_resource", withResource, ({ resourceUri }) => ({
    messages: [
      says(document(resourceUri, "text/plain", "Embedded resource content for testing.")),
      says(text("Please process the embedded resource above.")),
    ],
  }));
  server.registerPrompt("test_prompt_with_image", { description: "With an image" }, () => ({
    messages: [says(image), says(text("Please analyze the image above."))],
  }));
}

/** JSON Schema of an object whose members are strings, all of them required. */
export function strings(...names: string[]) {
  const properties = Object.fromEntries(names.map((name) => [name, { type: "string" as const }]));
  return { type: "object" as const, properties, required: names };
}
