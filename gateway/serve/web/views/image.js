/** The view of images. */
import { startView } from "./layout.js";
import { drawImages } from "./result.js";

startView("image", drawImages, { plan: "none" });
