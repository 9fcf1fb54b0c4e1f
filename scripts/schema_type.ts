/** The TypeScript type of a JSON Schema, for the parts of JSON Schema that this server's OpenAPI document uses. */

export interface JsonSchema {
  $ref?: string;
  type?: string | string[];
  format?: string;
  const?: unknown;
  enum?: unknown[];
  anyOf?: JsonSchema[];
  allOf?: JsonSchema[];
  items?: JsonSchema;
  properties?: Record<string, JsonSchema>;
  patternProperties?: Record<string, JsonSchema>;
  additionalProperties?: JsonSchema | boolean;
  required?: string[];
  description?: string;
}

export function schemaType(schema: JsonSchema): string {
  if (schema.$ref !== undefined) return schema.$ref.split('/').at(-1) as string;
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum !== undefined) return union(schema.enum.map((value) => JSON.stringify(value)));
  if (schema.anyOf !== undefined) return union(schema.anyOf.map(schemaType));
  if (schema.allOf !== undefined) return intersection(schema);
  const types = [schema.type ?? 'any'].flat();
  return union(types.map((type) => plainType(type, schema)));
}

function plainType(type: string, schema: JsonSchema): string {
  switch (type) {
    case 'integer':
      return 'number';
    case 'array':
      return `(${schemaType(schema.items ?? {})})[]`;
    case 'string':
      return schema.format === 'binary' ? 'File' : 'string';
    case 'object':
      return objectType(schema);
    default:
      return type;
  }
}

function objectType({
  properties,
  patternProperties = {},
  additionalProperties,
  required = [],
}: JsonSchema): string {
  const values = Object.values(patternProperties);
  if (typeof additionalProperties === 'object') values.push(additionalProperties);
  if (properties === undefined)
    return values.length === 0 ? 'object' : `Record<string, ${union(values.map(schemaType))}>`;
  const members = Object.entries(properties).map(([name, property]) => {
    const comment =
      property.description === undefined ? '' : `/** ${property.description.replaceAll('*/', '* /')} */ `;
    return `${comment}${JSON.stringify(name)}${required.includes(name) ? '' : '?'}: ${schemaType(property)};`;
  });
  return `{ ${members.join(' ')} }`;
}

function intersection({ allOf = [], ...rest }: JsonSchema): string {
  const parts = allOf.map(schemaType);
  if (rest.properties !== undefined) parts.push(schemaType(rest));
  return parts.map((part) => `(${part})`).join(' & ');
}

function union(types: string[]): string {
  return [...new Set(types)].map((type) => (type.includes(' & ') ? `(${type})` : type)).join(' | ');
}
