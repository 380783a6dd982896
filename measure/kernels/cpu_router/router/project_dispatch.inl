// As for the heads of a score: the number of sequences is a compile-time constant.
void project_item(const uint16_t* weights, const uint16_t* latent, int rank, int batch,
                  float (*out)[2][16]) {
  switch (batch) {
    case 1: project_tile<1>(weights, latent, rank, out); break;
    case 2: project_tile<2>(weights, latent, rank, out); break;
    case 3: project_tile<3>(weights, latent, rank, out); break;
    case 4: project_tile<4>(weights, latent, rank, out); break;
    case 5: project_tile<5>(weights, latent, rank, out); break;
    case 6: project_tile<6>(weights, latent, rank, out); break;
    case 7: project_tile<7>(weights, latent, rank, out); break;
    default: project_tile<8>(weights, latent, rank, out);
  }
}
