/** The view of the `document` renderer. */
import { drawFile } from "./file.js";
import { startView } from "./layout.js";

startView("document", drawFile);
