/** JSON texts that are easily changed on their way: by parsing, by printing, by decoding, by cutting into lines. */
export const trickyPayloads: Readonly<Record<string, string>> = {
  "key order": '{"2":"b","1":"a","b":{"z":1,"a":2}}',
  "a number above 2^63": '{"n":9223372036854775808,"m":-9223372036854775809}',
  "a float that is whole": '{"n":1.0,"e":1E+2,"z":-0.0}',
  "duplicate keys": '{"a":1,"a":2,"a":{"b":1,"b":2}}',
  "pretty-printed": '{\n  "a": [\n    1,\t2\n  ]\r\n}',
  "line ends of all kinds": '{"a":"\\r\\n\\u2028","b":"\u2028\u2029\u0085"}',
  "an escaped NUL": '{"a":"\\u0000"}',
  "four-byte characters": '{"a":"😀𐍈","b":"\\ud83d\\ude00"}',
  "lone surrogate escapes": '{"a":"\\ud800","b":"\\udfff x"}',
  "escapes that need none": '{"a":"\\/\\u0041\\b\\f"}',
  "a string of 1 MiB": JSON.stringify({ a: "ä".repeat(512 * 1024) }),
  "deep nesting": `{"a":${"[".repeat(2_000)}${"]".repeat(2_000)}}`,
  "a byte order mark": '{"a":"\ufeff"}',
};
