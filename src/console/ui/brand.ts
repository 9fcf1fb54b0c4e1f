/** The operator's name and logo, from the HTML page (src/web/console.ts). */

const { name = 'Nuncio', logo = '' } = document.documentElement.dataset;

export const brandName = name;
/** Empty if there is none. */
export const brandLogo = logo;
