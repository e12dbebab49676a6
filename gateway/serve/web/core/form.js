/** A form from a JSON Schema. What nobody touched is not sent; `Form` and `JSON` show the same value. */
import { h, replace } from "./dom.js";
import { icon } from "./icons.js";

/** @typedef {any} Schema */
/** @typedef {{node: HTMLElement, get: () => any, set: (value: any) => void, check: () => string | null}} Field */
/** @typedef {{root: Schema, changed: () => void, depth: number, id: string, required?: boolean, name?: string}} Place */

const DEPTH_LIMIT = 6;
const SEGMENTS = 5;
const SHOWN_FIELDS = 6;
const LONG_TEXT = /^(body|content|text|code|patch|prompt|script|html|markdown|message|sql|diff|new_text|old_text)$/;
let ids = 0;

/**
 * The form. `value` is what it begins with, `onChange` is called after every change.
 * @param {{schema: Schema, value?: Record<string, any>, onChange?: () => void, testid?: string}} options
 * @returns {{node: HTMLElement, get: () => Record<string, any> | null, set: (value: Record<string, any>) => void,
 *   check: () => string | null, mode: () => string}} `get` is null while the JSON cannot be read; `check` shows what is
 * wrong, focuses it and returns the first message.
 */
export function schemaForm({ schema, value = {}, onChange = () => {}, testid = "form" }) {
  const root = schema ?? {};
  const changed = () => onChange();
  const canForm = isForm(root);
  const fields = canForm ? objectField(root, { root, changed, depth: 0, id: `form-${++ids}` }) : null;
  const json = jsonField({ root, changed, depth: 0, id: `form-${++ids}`, required: true, name: "arguments" }, 12);
  let mode = canForm ? "form" : "json";
  const body = h("div", { class: "form__body" });
  const note = h("p", { class: "meta", hidden: canForm }, "This schema is more than a form can show. Write the arguments as JSON.");
  const tabs = ["form", "json"].map((each) =>
    h("button", { type: "button", role: "radio", "data-testid": `${testid}.${each}`, disabled: each === "form" && !canForm, onclick: () => change(each) }, each === "form" ? "Form" : "JSON"),
  );
  const switcher = h("div", { class: "segmented", role: "radiogroup", "aria-label": "How to enter the arguments" }, tabs);
  const node = h("div", { class: "form stack", "data-testid": testid }, h("div", { class: "row form__head" }, switcher), note, body);

  function draw() {
    tabs.forEach((tab, index) => tab.setAttribute("aria-checked", String((index === 0) === (mode === "form"))));
    replace(body, mode === "form" && fields ? fields.node : json.node);
  }
  /** @param {string} wanted */
  function change(wanted) {
    if (wanted === mode) return;
    if (mode === "json" && json.check()) return void json.node.querySelector("textarea")?.focus();
    const now = active().get() ?? {};
    mode = wanted;
    active().set(now);
    draw();
  }
  const active = () => (mode === "form" && fields ? fields : json);
  /** @param {Record<string, any>} given */
  function set(given) {
    active().set(given ?? {});
    changed();
  }
  active().set(value);
  draw();
  return {
    node,
    set,
    mode: () => mode,
    get: () => (mode === "json" && json.check() ? null : active().get() ?? {}),
    check() {
      const problem = active().check();
      if (problem) /** @type {HTMLElement | null} */ (body.querySelector('[aria-invalid="true"]'))?.focus();
      return problem;
    },
  };
}

/** @param {Schema} schema */
function isForm(schema) {
  return typeof schema === "object" && (schema.type ?? "object") === "object" && !schema.oneOf && !schema.anyOf && !schema.allOf && !schema.patternProperties && !(schema.additionalProperties && typeof schema.additionalProperties === "object" && !schema.properties);
}

/** Follow a reference within the schema. @param {Schema} schema @param {Schema} root */
function resolve(schema, root) {
  for (let turns = 0; schema && typeof schema.$ref === "string" && turns < 8; turns++) {
    const parts = schema.$ref.startsWith("#") ? schema.$ref.slice(1).split("/").filter(Boolean) : null;
    const found = parts?.reduce((/** @type {any} */ at, /** @type {string} */ part) => at?.[part.replaceAll("~1", "/").replaceAll("~0", "~")], root);
    if (!found) return {};
    const { $ref, ...rest } = schema;
    schema = { ...found, ...rest };
  }
  return typeof schema === "object" && schema ? schema : {};
}

/** The schema without null, and whether null is allowed. @param {Schema} schema @param {Schema} root @returns {[Schema, boolean]} */
function splitNull(schema, root) {
  const rest = resolve(schema, root);
  const options = rest.anyOf ?? rest.oneOf;
  if (Array.isArray(rest.type) && rest.type.includes("null")) {
    const types = rest.type.filter((/** @type {string} */ each) => each !== "null");
    return [{ ...rest, type: types.length === 1 ? types[0] : types, enum: rest.enum?.filter((/** @type {any} */ each) => each !== null) }, true];
  }
  if (Array.isArray(options) && options.some((each) => each?.type === "null")) {
    const others = options.filter((each) => each?.type !== "null");
    const { anyOf, oneOf, ...common } = rest;
    return [others.length === 1 ? { ...resolve(others[0], root), ...common } : { ...common, oneOf: others }, true];
  }
  return [rest, false];
}

/** @param {Schema} schema @param {Place} place @returns {Field} */
function makeField(schema, place) {
  const [plain, nullable] = splitNull(schema, place.root);
  const inner = nullable ? { ...place, required: false } : place;
  return nullable ? nullableField(plain, inner, place.required ?? false) : plainField(plain, inner);
}

/** @param {Schema} schema @param {Place} place @returns {Field} */
function plainField(schema, place) {
  if ("const" in schema) return choiceField([schema.const], schema, place);
  if (Array.isArray(schema.enum)) return choiceField(schema.enum, schema, place);
  const options = schema.oneOf ?? schema.anyOf;
  if (place.depth >= DEPTH_LIMIT || schema.allOf) return jsonField(place);
  if (Array.isArray(options)) return variantField(options, schema, place);
  switch (schema.type ?? (schema.properties ? "object" : undefined)) {
    case "boolean": return booleanField(schema, place);
    case "integer": case "number": return textField(schema, place, "number");
    case "string": return textField(schema, place, "string");
    case "array": return Array.isArray(schema.items) || schema.prefixItems ? jsonField(place) : arrayField(schema, place);
    case "object": return schema.properties && !schema.patternProperties ? objectField(schema, place) : jsonField(place);
    default: return jsonField(place);
  }
}

/** @param {Schema} schema @param {Place} place @param {"number" | "string"} kind @returns {Field} */
function textField(schema, place, kind) {
  const isLong = kind === "string" && schema.format !== "password" && (LONG_TEXT.test(place.name ?? "") || (schema.maxLength ?? 0) > 200 || String(schema.contentMediaType ?? "").startsWith("text/"));
  let touched = false;
  const attributes = {
    id: place.id, "aria-required": place.required ? "true" : null, autocomplete: "off", spellcheck: "false", "data-testid": "form.input", "data-key": place.name,
    placeholder: schema.default !== undefined && schema.default !== null ? `${typeof schema.default === "string" ? schema.default : JSON.stringify(schema.default)} (default)` : schema.examples?.[0] !== undefined ? `such as ${schema.examples[0]}` : null,
    oninput: () => { touched = true; place.changed(); },
  };
  const input = isLong
    ? h("textarea", { ...attributes, rows: 4 })
    : h("input", { ...attributes, type: schema.format === "password" || schema.writeOnly ? "password" : "text", inputmode: kind === "number" ? "decimal" : null });
  const read = () => (kind === "number" ? (input.value.trim() === "" || Number.isNaN(Number(input.value)) ? input.value : Number(input.value)) : input.value);
  return {
    node: input,
    // An emptied optional field counts as not touched; an empty text that is wanted can be sent with JSON.
    get: () => (input.value === "" && !(touched && place.required && kind === "string") ? undefined : read()),
    set: (value) => { touched = value !== undefined; input.value = value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value); },
    check: () => (input.value === "" ? null : kind === "number" ? checkNumber(read(), schema) : checkText(input.value, schema)),
  };
}

/** @param {any} value @param {Schema} schema */
function checkNumber(value, schema) {
  if (typeof value !== "number") return "Must be a number.";
  if (schema.type === "integer" && !Number.isInteger(value)) return "Must be a whole number.";
  if (value < schema.minimum) return `Must be ${schema.minimum} or more.`;
  if (value > schema.maximum) return `Must be ${schema.maximum} or less.`;
  if (value <= schema.exclusiveMinimum) return `Must be more than ${schema.exclusiveMinimum}.`;
  if (value >= schema.exclusiveMaximum) return `Must be less than ${schema.exclusiveMaximum}.`;
  return null;
}

/** @param {string} value @param {Schema} schema */
function checkText(value, schema) {
  if ([...value].length < schema.minLength) return `Must have at least ${schema.minLength} characters.`;
  if ([...value].length > schema.maxLength) return `Must have at most ${schema.maxLength} characters.`;
  return null; // patterns are the gateway's: a hostile one could stop the page
}

/** @param {Schema} schema @param {Place} place @returns {Field} */
function booleanField(schema, place) {
  /** @type {boolean | undefined} */
  let value;
  const word = h("span", { class: "meta" });
  const input = h("input", { type: "checkbox", class: "toggle", role: "switch", id: place.id, "data-testid": "form.input", "data-key": place.name, onchange: () => { value = input.checked; draw(); place.changed(); } });
  const draw = () => {
    input.checked = value ?? schema.default ?? false;
    replace(word, value === undefined ? (schema.default === undefined ? "not sent" : `${schema.default} default`) : String(value));
  };
  draw();
  return { node: h("div", { class: "row" }, input, word), get: () => value, set: (given) => { value = typeof given === "boolean" ? given : undefined; draw(); }, check: () => null };
}

/** A choice of given values. @param {any[]} values @param {Schema} schema @param {Place} place @returns {Field} */
function choiceField(values, schema, place) {
  const words = values.map((value) => (typeof value === "string" ? value : JSON.stringify(value)));
  const index = (/** @type {any} */ value) => values.findIndex((each) => JSON.stringify(each) === JSON.stringify(value));
  if (values.length <= SEGMENTS && words.join("").length <= 48) {
    return segmentsField(place.required ? words : ["Not sent", ...words], place, (at) => (place.required ? values[at] : at === 0 ? undefined : values[at - 1]), (value) => (index(value) < 0 ? (place.required ? -1 : 0) : index(value) + (place.required ? 0 : 1)));
  }
  const select = h("select", { id: place.id, "data-testid": "form.input", "data-key": place.name, onchange: place.changed }, h("option", { value: "" }, schema.default === undefined ? (place.required ? "Choose" : "Not sent") : `${schema.default} (default)`), words.map((word, at) => h("option", { value: String(at) }, word)));
  return { node: select, get: () => (select.value === "" ? undefined : values[Number(select.value)]), set: (value) => { select.value = index(value) < 0 ? "" : String(index(value)); }, check: () => null };
}

/** Radio buttons side by side. @param {string[]} words @param {Place} place @param {(at: number) => any} read @param {(value: any) => number} find @returns {Field} */
function segmentsField(words, place, read, find) {
  const name = `${place.id}-choice`;
  const inputs = words.map((word, at) => h("input", { type: "radio", name, value: String(at), id: at === 0 ? place.id : null, "data-testid": "form.choice", "data-key": `${place.name}.${word}`, onchange: place.changed }));
  const at = () => inputs.findIndex((input) => input.checked);
  return {
    node: h("div", { class: "segmented", role: "radiogroup", "aria-label": place.name }, inputs.map((input, index) => h("label", null, input, words[index]))),
    get: () => (at() < 0 ? undefined : read(at())),
    set: (value) => { const wanted = find(value); inputs.forEach((input, index) => { input.checked = index === wanted; }); },
    check: () => null,
  };
}

/** `Not sent · null · Value`. @param {Schema} schema @param {Place} place @param {boolean} required @returns {Field} */
function nullableField(schema, place, required) {
  const inner = plainField(schema, { ...place, id: `${place.id}-value`, changed: () => place.changed() });
  const words = required ? ["null", "Value"] : ["Not sent", "null", "Value"];
  const box = h("div", { class: "form__value" });
  const chosen = () => words[Math.max(0, /** @type {number} */ (choice.get() ?? 0))];
  const draw = () => { replace(box, chosen() === "Value" ? inner.node : null); };
  const choice = segmentsField(words, { ...place, changed: () => { draw(); place.changed(); } }, (at) => at, (value) => value);
  choice.set(0);
  return {
    node: h("div", { class: "stack form__nullable" }, h("div", null, choice.node), box),
    get: () => (chosen() === "null" ? null : chosen() === "Value" ? inner.get() ?? emptyOf(schema) : undefined),
    set: (value) => {
      choice.set(words.indexOf(value === undefined ? words[0] : value === null ? "null" : "Value"));
      inner.set(value === null ? undefined : value);
      draw();
    },
    check: () => (chosen() === "Value" ? inner.check() : null),
  };
}

/** @param {Schema} schema */
function emptyOf(schema) {
  return { string: "", array: [], object: {}, boolean: false }[/** @type {string} */ (schema.type)];
}

/** One of several shapes. @param {Schema[]} options @param {Schema} schema @param {Place} place @returns {Field} */
function variantField(options, schema, place) {
  const common = schema.properties ? { type: "object", properties: schema.properties, required: schema.required } : null;
  const shapes = options.map((option) => {
    const shape = resolve(option, place.root);
    return common ? { ...common, ...shape, properties: { ...common.properties, ...shape.properties }, required: [...(common.required ?? []), ...(shape.required ?? [])] } : shape;
  });
  const fields = shapes.map((shape, at) => plainField(shape, { ...place, id: `${place.id}-${at}`, depth: place.depth + 1, required: true }));
  const box = h("div", { class: "form__value" });
  const names = shapes.map((shape, at) => shape.title ?? shape.const ?? describeType(shape, place.root) ?? `Choice ${at + 1}`);
  const select = h("select", { id: place.id, "data-testid": "form.variant", "data-key": place.name, onchange: () => { draw(); place.changed(); } }, h("option", { value: "" }, place.required ? "Choose" : "Not sent"), names.map((name, at) => h("option", { value: String(at) }, String(name))));
  const chosen = () => (select.value === "" ? null : fields[Number(select.value)]);
  const draw = () => { replace(box, chosen()?.node ?? null); };
  return {
    node: h("div", { class: "stack form__nullable" }, select, box),
    get: () => { const field = chosen(); return field ? field.get() ?? emptyOf(shapes[Number(select.value)]) : undefined; },
    set: (value) => {
      const at = value === undefined ? -1 : shapes.findIndex((shape) => fits(value, shape));
      select.value = value === undefined ? "" : String(Math.max(at, 0));
      if (value !== undefined) fields[Math.max(at, 0)].set(value);
      draw();
    },
    check: () => chosen()?.check() ?? null,
  };
}

/** A guess whether a value has the shape of a schema. @param {any} value @param {Schema} schema @returns {boolean} */
function fits(value, schema) {
  if ("const" in schema) return JSON.stringify(value) === JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.some((/** @type {any} */ each) => JSON.stringify(each) === JSON.stringify(value));
  const type = Array.isArray(value) ? "array" : value === null ? "null" : typeof value;
  const wanted = schema.type ?? (schema.properties ? "object" : type);
  if (wanted !== type && !(wanted === "integer" && Number.isInteger(value))) return false;
  if (type !== "object") return true;
  const properties = schema.properties ?? {};
  return (schema.required ?? []).every((/** @type {string} */ name) => name in value) && Object.entries(value).every(([name, each]) => !properties[name] || !("const" in properties[name]) || properties[name].const === each);
}

/** @param {Schema} schema @param {Place} place @returns {Field} */
function arrayField(schema, place) {
  const [items] = splitNull(schema.items ?? {}, place.root);
  const limits = (/** @type {any[]} */ values) => (values.length < schema.minItems ? `Needs at least ${schema.minItems}.` : values.length > schema.maxItems ? `At most ${schema.maxItems}.` : null);
  return items.type === "string" && !items.enum ? chipsField(place, limits) : listField(schema, place, limits);
}

/** A list of short texts. @param {Place} place @param {(values: string[]) => string | null} limits @returns {Field} */
function chipsField(place, limits) {
  /** @type {string[] | undefined} */
  let values;
  const input = h("input", {
    type: "text", id: place.id, class: "chips__input", placeholder: "Add", autocomplete: "off", "data-testid": "form.input", "data-key": place.name, onblur: () => add(),
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Enter" && !event.ctrlKey && input.value) { event.preventDefault(); add(); }
      else if (event.key === "Backspace" && !input.value && values?.length) { values = values.slice(0, -1); draw(); place.changed(); }
    },
  });
  const list = h("span", { class: "chips__list" });
  function add() {
    if (!input.value) return;
    values = [...(values ?? []), input.value];
    input.value = "";
    draw();
    place.changed();
  }
  function draw() {
    replace(list, (values ?? []).map((value, at) => h("span", { class: "badge badge--accent" }, value, h("button", { type: "button", class: "chips__remove", "aria-label": `Remove ${value}`, "data-testid": "form.remove", onclick: () => { values = values?.filter((_, index) => index !== at); draw(); place.changed(); } }, icon("x")))));
  }
  return {
    node: h("div", { class: "chips" }, list, input),
    get: () => { if (input.value) return [...(values ?? []), input.value]; return values; },
    set: (given) => { values = Array.isArray(given) ? given.map(String) : undefined; input.value = ""; draw(); },
    check: () => (values === undefined ? null : limits(values)),
  };
}

/** A list of anything. @param {Schema} schema @param {Place} place @param {(values: any[]) => string | null} limits @returns {Field} */
function listField(schema, place, limits) {
  /** @type {Field[] | undefined} */
  let fields;
  const list = h("ol", { class: "form__list" });
  const node = h("div", { class: "stack" }, list, h("button", { type: "button", class: "button button--small form__add", id: place.id, "data-testid": "form.add", "data-key": place.name, onclick: () => { fields = [...(fields ?? []), make()]; draw(); place.changed(); } }, icon("plus"), "Add"));
  const make = () => makeField(schema.items ?? {}, { ...place, id: `form-${++ids}`, depth: place.depth + 1, required: true });
  const draw = () => { replace(list, (fields ?? []).map((field, at) => h("li", { class: "row" }, h("div", { class: "form__item field" }, field.node), h("button", { type: "button", class: "button button--quiet button--icon button--small", "aria-label": `Remove item ${at + 1}`, "data-testid": "form.remove", onclick: () => { fields = fields?.filter((each) => each !== field); draw(); place.changed(); } }, icon("x"))))); };
  return {
    node,
    get: () => fields?.map((field) => field.get() ?? null),
    set: (given) => { fields = Array.isArray(given) ? given.map((value) => { const field = make(); field.set(value); return field; }) : undefined; draw(); },
    check: () => (fields === undefined ? null : limits(fields) ?? fields.map((field) => field.check()).find(Boolean) ?? null),
  };
}

/** @param {Schema} schema @param {Place} place @returns {Field} */
function objectField(schema, place) {
  const properties = Object.entries(schema.properties ?? {});
  const required = new Set(Array.isArray(schema.required) ? schema.required : []);
  /** Values that the schema does not name. @type {Record<string, any>} */
  let others = {};
  const note = h("p", { class: "meta", hidden: true });
  const parts = properties.map(([name, part]) => labelledField(name, part, required.has(name), place));
  const folded = properties.length > SHOWN_FIELDS ? parts.filter((part) => !part.required) : [];
  const summary = h("summary", { "data-testid": "form.optional" });
  const details = h("details", { class: "form__optional" }, summary, h("div", { class: "form__grid" }, folded.map((part) => part.node)));
  const describe = () => replace(summary, folded.some((part) => part.get() !== undefined) ? "Optional fields" : `${folded.length} optional fields not sent: `, h("span", { class: "mono" }, folded.map((part) => part.name).join(", ")));
  describe();
  const grid = h("div", { class: "form__grid" }, parts.filter((part) => !folded.includes(part)).map((part) => part.node));
  const isEmpty = !properties.length ? h("p", { class: "meta" }, "It takes no arguments.") : null;
  const content = [isEmpty, grid, folded.length ? details : null, note];
  return {
    node: place.depth === 0 ? h("div", { class: "stack" }, content) : h("fieldset", { class: "form__group stack" }, h("legend", { class: "visually-hidden" }, place.name), content),
    get: () => {
      const values = Object.fromEntries(parts.map((part) => [part.name, part.get()]).filter(([, value]) => value !== undefined));
      const all = { ...values, ...others };
      return Object.keys(all).length || place.depth === 0 ? all : place.required ? {} : undefined;
    },
    set: (given) => {
      const value = given && typeof given === "object" && !Array.isArray(given) ? given : {};
      for (const part of parts) part.set(Object.hasOwn(value, part.name) ? value[part.name] : undefined);
      others = Object.fromEntries(Object.entries(value).filter(([name]) => !properties.some(([known]) => known === name)));
      note.hidden = !Object.keys(others).length;
      replace(note, "Also sent, see JSON: ", h("span", { class: "mono" }, Object.keys(others).join(", ")));
      if (folded.some((part) => part.get() !== undefined)) details.open = true;
      describe();
    },
    check: () => {
      const problems = parts.map((part) => part.check(place.depth === 0 || place.required || parts.some((each) => each.get() !== undefined)));
      if (folded.some((part) => problems[parts.indexOf(part)])) details.open = true;
      return problems.find(Boolean) ?? null;
    },
  };
}

/** A field with its name, type, description and error. @param {string} name @param {Schema} schema @param {boolean} required @param {Place} place */
function labelledField(name, schema, required, place) {
  const id = `form-${++ids}`;
  const error = h("p", { class: "field__error", id: `${id}-error`, hidden: true });
  const clear = () => { error.hidden = true; control()?.removeAttribute("aria-invalid"); };
  const field = makeField(schema, { ...place, id, name, required, depth: place.depth + 1, changed: () => { clear(); place.changed(); } });
  const control = () => field.node.id === id ? field.node : field.node.querySelector(`#${id}`);
  const plain = resolve(schema, place.root);
  const hint = plain.description ? h("p", { class: "field__hint", id: `${id}-hint` }, plain.description) : null;
  control()?.setAttribute("aria-describedby", `${hint ? `${id}-hint ` : ""}${id}-error`);
  const isWide = field.node.matches("textarea, fieldset, .stack, .chips, .segmented") || String(plain.description ?? "").length > 90;
  const node = h(
    "div", { class: `field${isWide ? " field--wide" : ""}`, "data-testid": "form.field", "data-key": name },
    h("label", { for: id }, h("span", { class: "mono" }, name), required ? h("span", { class: "form__required", title: "required" }, "*", h("span", { class: "visually-hidden" }, " required")) : null, h("span", { class: "field__type" }, describeType(schema, place.root))),
    field.node, error, hint,
  );
  /** @param {boolean} counts whether the object it belongs to is sent */
  function check(counts) {
    const problem = counts && required && field.get() === undefined ? "Enter a value." : field.check();
    error.hidden = !problem;
    replace(error, problem ? icon("octagon") : null, problem);
    if (problem) control()?.setAttribute("aria-invalid", "true");
    return problem ? `${name}: ${problem}` : null;
  }
  return { name, required, node, get: field.get, set: (/** @type {any} */ value) => { clear(); field.set(value); }, check };
}

/** `string`, `integer, 1 to 2000`, `string[]`, `object or null`. @param {Schema} given @param {Schema} root @returns {string} */
export function describeType(given, root) {
  const [schema, nullable] = splitNull(given, root);
  const suffix = nullable ? " or null" : "";
  if (Array.isArray(schema.enum)) return `one of ${schema.enum.length}${suffix}`;
  if (schema.oneOf || schema.anyOf) return `one of ${(schema.oneOf ?? schema.anyOf).length} shapes${suffix}`;
  if (schema.type === "array") return `${describeType(schema.items ?? {}, root)}[]${suffix}`;
  const type = Array.isArray(schema.type) ? schema.type.join(" or ") : schema.type ?? (schema.properties ? "object" : "any");
  const minimum = Math.abs(schema.minimum) < Number.MAX_SAFE_INTEGER ? schema.minimum : undefined;
  const maximum = Math.abs(schema.maximum) < Number.MAX_SAFE_INTEGER ? schema.maximum : undefined;
  const range = minimum !== undefined && maximum !== undefined ? `, ${minimum} to ${maximum}` : minimum !== undefined ? `, ${minimum} or more` : maximum !== undefined ? `, ${maximum} or less` : "";
  return `${type}${schema.format ? `, ${schema.format}` : ""}${range}${suffix}`;
}

/** A value as JSON text. @param {Place} place @param {number} [rows] @returns {Field} */
function jsonField(place, rows = 4) {
  const error = h("p", { class: "field__error", role: "alert", hidden: true });
  const area = h("textarea", { id: place.id, rows, class: "mono form__json", spellcheck: "false", "aria-label": `${place.name ?? "value"} as JSON`, "data-testid": "form.json-text", "data-key": place.name, oninput: () => { check(); place.changed(); } });
  const read = () => (area.value.trim() === "" ? { value: place.depth === 0 ? {} : undefined } : parseJson(area.value));
  function check() {
    const { problem, value } = read();
    const message = problem ?? (place.depth === 0 && (typeof value !== "object" || value === null || Array.isArray(value)) ? "Line 1, column 1: the arguments must be an object." : null);
    error.hidden = !message;
    replace(error, message ? icon("octagon") : null, message);
    area.setAttribute("aria-invalid", String(Boolean(message)));
    return message;
  }
  return {
    node: h("div", { class: "stack field" }, area, error),
    get: () => read().value,
    set: (value) => { area.value = value === undefined ? "" : JSON.stringify(value, null, 2); check(); },
    check,
  };
}

/**
 * Parse JSON; what is wrong is said with line and column.
 * @param {string} text
 * @returns {{value?: any, problem?: string}}
 */
export function parseJson(text) {
  try {
    return { value: JSON.parse(text) };
  } catch {
    const { at, wanted } = findJsonError(text);
    const before = text.slice(0, at).split("\n");
    const found = at < text.length ? `found ${JSON.stringify(text[at])}` : "found the end";
    return { problem: `Line ${before.length}, column ${before[before.length - 1].length + 1}: ${found}, expected ${wanted}.` };
  }
}

/** The place of the first error in a text that is not JSON; browsers do not always say it. @param {string} text */
function findJsonError(text) {
  const value = /\s*(?:"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null)/y;
  let at = 0;
  const skip = () => { while (/\s/.test(text[at] ?? "")) at++; return text[at]; };
  const scalar = () => { value.lastIndex = at; if (!value.test(text)) return false; at = value.lastIndex; return true; };
  /** @type {string[]} */
  const open = [];
  for (let wanted = "a value"; ; ) {
    const character = skip();
    if (wanted === "a value" || wanted === "a value or ]") {
      if (character === "{" || character === "[") { open.push(character); at++; wanted = character === "{" ? "a name or }" : "a value or ]"; continue; }
      if (!(character === "]" && wanted === "a value or ]")) { if (!scalar()) return { at, wanted }; wanted = "after"; continue; }
    }
    if (wanted === "a name" || (wanted === "a name or }" && character !== "}")) {
      if (character !== '"' || !scalar()) return { at, wanted: wanted === "a name" ? "a name in double quotes" : "a name in double quotes or }" };
      if (skip() !== ":") return { at, wanted: "a colon" };
      at++;
      wanted = "a value";
      continue;
    }
    const last = open[open.length - 1];
    if (!last) return { at, wanted: "nothing more" };
    const end = last === "{" ? "}" : "]";
    if (character === end) { open.pop(); at++; wanted = "after"; }
    else if (character === "," && wanted === "after") { at++; wanted = last === "{" ? "a name" : "a value"; }
    else return { at, wanted: `a comma or ${end}` };
  }
}
